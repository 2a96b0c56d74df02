"""The score store: a Zarr array of (row, sample), written by many processes, read by xarray."""
