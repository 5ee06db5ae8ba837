"""Commands that read the deployment: manifests, time series, logs."""
