"""Report page of one run or of several runs: charts, samples and a summary in one HTML file."""
