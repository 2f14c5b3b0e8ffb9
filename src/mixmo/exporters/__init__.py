"""One file to deploy: ONNX or PyTorch, folded, checked against PyTorch."""
