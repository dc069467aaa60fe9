"""The same rows inside other people's trainers: ``adapters.trl`` and ``adapters.verl``, each imported only when asked for."""
