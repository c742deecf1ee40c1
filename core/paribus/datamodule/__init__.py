"""From corpora to batches: encoding, token store, packing, examples, and the LightningDataModule."""
