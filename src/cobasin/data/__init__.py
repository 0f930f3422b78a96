"""From a data set to batches that a model reads."""

from cobasin.data.batches import Batch, Batches, batches
from cobasin.data.config import DataConfig, DataSet
from cobasin.data.sources import rows_of
from cobasin.data.tasks import task_of

__all__ = ["Batch", "Batches", "DataConfig", "DataSet", "batches", "rows_of", "task_of"]
