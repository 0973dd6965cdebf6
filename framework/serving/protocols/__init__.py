"""What a model server speaks: TensorFlow Serving's interfaces, the Open Inference Protocol, and Triton's extensions."""
