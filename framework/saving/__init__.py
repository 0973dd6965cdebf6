"""Files of models and weights: Keras's formats, HDF5, safetensors."""
