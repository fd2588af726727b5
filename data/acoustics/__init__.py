"""Audio with torch: waveforms, mel spectrograms, voice activity. No other package of `data` loads torch."""
