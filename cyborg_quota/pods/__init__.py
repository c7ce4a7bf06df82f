# SPDX-License-Identifier: Apache-2.0
"""Pods: several OpenStack deployments of one availability zone, and the pod of each project."""
