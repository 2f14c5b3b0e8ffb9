"""The prediction service: an HTTP API that batches concurrent requests, and a page to try it."""
