"""Controls around the figures of ``plotting``, for notebooks (ipywidgets). A figure function draws into given axes."""
