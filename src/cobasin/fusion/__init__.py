"""Merge methods: functions of tensors."""
