# SPDX-License-Identifier: Apache-2.0
from oslo_config import cfg
from oslo_context.context import RequestContext

import cyborg_quota

conf = cfg.ConfigOpts()
cyborg_quota.conf.register_opts(conf)
conf([])  # a service passes its own arguments, and reads its own files
quotas = cyborg_quota.make_engine(conf)

context = RequestContext(project_id="studio")
with cyborg_quota.attachment(quotas, context, {"gpu": 1}, consumer="arq-1", group="instance-1"):
    print("attach here")
print(quotas.get_usages(context)["gpu"])
