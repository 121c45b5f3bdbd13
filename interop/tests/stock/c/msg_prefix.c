/* Preloaded library that makes every program request FI_MSG_PREFIX, that is, room before each
 * message, which libfabric's verbs provider requires for datagrams. The programs of fabtests
 * support this mode but do not request it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
	       struct fi_info **info)
{
	__typeof__(&fi_getinfo) next = (__typeof__(&fi_getinfo))dlsym(RTLD_NEXT, "fi_getinfo");
	struct fi_info *with_prefix = hints ? fi_dupinfo(hints) : NULL;
	int result;

	if (with_prefix)
		with_prefix->mode |= FI_MSG_PREFIX;
	result = next(version, node, service, flags, with_prefix, info);
	if (with_prefix)
		fi_freeinfo(with_prefix);
	return result;
}
