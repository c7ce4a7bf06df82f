# SPDX-License-Identifier: Apache-2.0
"""How a conductor charges a request for several accelerators, and settles each by what became of it."""

from collections.abc import Callable, Mapping

from oslo_context.context import RequestContext

from cyborg_quota import Claim, QuotaEngine, exceptions


def attach_all(
    quotas: QuotaEngine,
    context: RequestContext,
    instance: str,
    arqs: Mapping[str, str],
    attach: Callable[[str], bool],
) -> list[str]:
    """Attach what ``arqs`` ({ARQ's UUID: resource}) asks for. Returns the ARQs that are attached and charged.

    Raises OverQuota before anything is attached: all of them fit, or none is tried.
    """
    claims = [Claim(arq, {resource: 1}) for arq, resource in arqs.items()]
    quotas.reserve_many(context, claims, group=instance)
    attached = []
    for arq in arqs:
        try:
            works = attach(arq)
        except Exception:
            works = False
        if not works:
            quotas.rollback(context, consumer=arq)
        elif charge(quotas, context, Claim(arq, {arqs[arq]: 1}), instance):
            attached.append(arq)
    return attached


def charge(quotas: QuotaEngine, context: RequestContext, claim: Claim, instance: str) -> bool:
    """Commit what is attached; if its reservation was lost meanwhile, reserve afresh. False: the caller detaches."""
    try:
        quotas.commit(context, consumer=claim.consumer)
    except (exceptions.ReservationExpired, exceptions.ReservationRolledBack, exceptions.ReservationNotFound):
        try:
            quotas.reserve_many(context, [claim], group=instance)
        except exceptions.OverQuota:
            return False
        quotas.commit(context, consumer=claim.consumer)
    return True


def detach_all(quotas: QuotaEngine, context: RequestContext, instance: str) -> None:
    """All that the instance holds is free again. May be called twice."""
    quotas.release(context, group=instance)
