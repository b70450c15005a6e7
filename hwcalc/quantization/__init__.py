"""How weights and caches are stored: schemes of quantised weights, formats by name, and what is planned of them."""
