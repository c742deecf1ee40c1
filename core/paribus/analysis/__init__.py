"""Analysis: from records to verdicts, with pairing, certificates, statistics and calibration."""
