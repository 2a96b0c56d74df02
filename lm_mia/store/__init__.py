"""The score store: Zarr arrays of shape (model, sample), written by many processes and read by xarray."""
