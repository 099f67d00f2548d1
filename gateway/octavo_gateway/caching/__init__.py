"""What requests and tenants say about cached KV."""
