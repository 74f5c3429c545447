//! What the fuzz targets share: nothing yet, for there is no target yet. `README.md` says what belongs here.
