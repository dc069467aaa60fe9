"""The same rows inside other people's trainers: ``adapters.trl`` and ``adapters.verl``, imported when asked for."""
