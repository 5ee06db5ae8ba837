"""gRPC over HTTP/2, protocol buffers and server reflection, without IO."""
