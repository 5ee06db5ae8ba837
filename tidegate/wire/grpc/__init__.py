"""gRPC messages, protocol buffers and server reflection, without IO."""
