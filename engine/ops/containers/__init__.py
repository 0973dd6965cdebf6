"""TensorArrays, stores, slices and sparse tensors: values that hold other values, and their ops."""
