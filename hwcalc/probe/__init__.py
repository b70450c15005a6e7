"""Allocate the cache of a plan on a real device, measure it, and compare. torch is imported only when something is measured.

``run`` measures one probe and ``result`` is its answer; ``receipt`` saves it, and plans it again later. ``devices`` opens the device and
meters it, ``allocator`` models CUDA's caching allocator, and ``bandwidth`` measures how fast the cache is read. ``limits`` finds the largest
batch or length that can be allocated. ``live`` runs a small real model, which ``live_model`` builds, and ``speed`` times such a model.
``policy_run`` runs a cache policy: on contiguous tensors in ``policy_cut``, on a pool of blocks in ``policy_paged``. ``__main__`` is one
process of ``torchrun``.
"""
