"""A codec and a vocoder for the voices of people: networks, recordings, training, adaptation to a reader."""
