"""The LightningModule of a spec: assembled, evaluated, distributed, adapted, saved and restored."""
