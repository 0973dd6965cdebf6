"""Writing servables: from models, functions and graphs, from files of models, and while `fit` runs."""
