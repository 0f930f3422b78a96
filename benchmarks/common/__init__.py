"""What the benchmarks on trained models share: families of models, their tasks, measuring, keeping and showing."""

from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
