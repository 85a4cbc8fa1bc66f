"""Keep accelerate from re-sharding or dispatching loaders over our datasets.

`Accelerator.prepare` treats every `IterableDataset` as one stream for the whole job: rank 0 reads it and
sends slices to the others (which loses the other ranks' episodes and fails on strings), or every rank reads
everything and keeps its part. Our datasets shard themselves, so their loaders are placed on the device and
left alone.

* `protection`: what `Accelerator.prepare` does with our loaders.
* `after_import`: puts it in place however late accelerate is imported.
* `detection`: an error where accelerate got hold of a loader all the same.
* `announced_epochs`: accelerate's own count of epochs, and ours after a resume.
* `even_batches`: loaders that end together on all ranks.

Nothing here imports accelerate, or costs anything in a process that does not use it.
"""

from lerobot_streaming.accelerate_guard.after_import import protect_when_imported
from lerobot_streaming.accelerate_guard.detection import refuse_unprotected_loader
from lerobot_streaming.accelerate_guard.protection import protect_loaders

__all__ = ["protect_loaders", "protect_when_imported", "refuse_unprotected_loader"]
