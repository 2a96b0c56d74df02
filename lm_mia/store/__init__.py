"""The score store: a Zarr array of (model, sample), written by many processes, read by xarray."""
