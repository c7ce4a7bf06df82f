# SPDX-License-Identifier: Apache-2.0
"""Limits per pod, the public interface. They apply in addition to the limits over all pods."""

from __future__ import annotations

from collections.abc import Mapping

from cyborg_quota import exceptions, validation
from cyborg_quota.policy import RULE, SEE_PODS
from cyborg_quota.subject import Subject
from cyborg_quota.types import LimitRecord, ResourceKey
from cyborg_quota.validation import Context


class PodLimits(Subject):
    """The largest amounts of resources that a project may hold in one pod. ``list`` needs an admin's context.

    With an enforcement model that limits the usage of descendants, the limit of a project includes what they hold in
    the pod. Only [limits] driver = database has limits per pod; another driver raises LimitsReadOnly.
    """

    def set(
        self,
        context: Context,
        limits: Mapping[str, int | None],
        project_id: str,
        pod: str,
        *,
        reason: str | None = None,
    ) -> None:
        """Set limits ({resource: limit}) of a project in a pod, all or none. The limit None removes one.

        What the project holds in the pod already counts. The policy rules cyborg_quota:limit:set and
        cyborg_quota:pod:see, both with the parent of the project, decide who may set them; by default an admin. Raises
        NotAuthorized; PodNotFound, unless limits are only removed; LimitRefused, UnknownResource, InvalidRequest.
        """
        if not isinstance(limits, Mapping) or not limits:
            raise exceptions.InvalidRequest("Limits per pod must map at least one resource to a limit.")
        project_id, pod = validation.check_name("project_id", project_id), validation.check_name("pod", pod)
        if not validation.is_admin(context):  # before the pod is looked up, so that the error reveals no pod
            self._require_right(context, project_id, self._driver.projects.parent_of(project_id))
        checked = {
            ResourceKey(validation.check_name("resource", resource), pod): None
            if limit is None
            else validation.check_limit(limit)
            for resource, limit in limits.items()
        }
        validation.refuse_unknown((name for name, limit in limits.items() if limit is not None), self._resources)
        author = self._author(context, reason)
        keeper = self._driver.keeper
        if any(limit is not None for limit in checked.values()):
            self._driver.providers.require_pods([pod])
        keeper.set_limits(
            project_id,
            checked,
            author,
            lambda parent_id: self._require_right(context, project_id, parent_id),
        )

    def _require_right(self, context: Context, project_id: str, parent_id: str | None) -> None:
        """Raise NotAuthorized unless the policy lets the context see pods and set limits of this project."""
        sees_pods = validation.is_admin(context) or self._authority.permits(SEE_PODS, context, project_id, parent_id)
        if not sees_pods or not self._authority.may_set(context, project_id, parent_id):
            raise exceptions.NotAuthorized("set_pod_limits", f"a context that {SEE_PODS} and {RULE} allow")

    def list(
        self,
        context: Context,
        project_id: str | None = None,
        pod: str | None = None,
        *,
        projects: int | None = None,
        after: str | None = None,
    ) -> list[LimitRecord]:
        """The limits per pod of a project (None: of all projects), in this pod (None: in any).

        ``projects``: the maximum number of projects, each with all these limits. ``after``: the id of the last project
        of the previous page, which need not exist any more. The database sorts the projects.

        A pod that was removed may have left limits. Raises PodNotFound if there is neither a limit nor the pod.
        """
        validation.admin_only(context, "list_pod_limits")
        in_pod = validation.optional_name("pod", pod)
        owner, keeper = validation.optional_name("project_id", project_id), self._driver.keeper
        after = validation.optional_name("after", after)
        found = keeper.list_in_pods(owner, in_pod, validation.row_limit(projects), after)
        if in_pod is not None and not found and not keeper.list_in_pods(owner, in_pod, 1, None):
            self._driver.providers.require_pods([in_pod])
        return found
