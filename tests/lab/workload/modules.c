// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Coverage in the text of modules: one that stays loaded, and one that is unloaded while its PCs
 * are still in a buffer.
 */
#include "lab.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns 0, or -1 with errno. */
int module_load(const char *name)
{
	char path[64];
	int fd, err;

	snprintf(path, sizeof(path), "/modules/%s.ko", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	err = syscall(SYS_finit_module, fd, "", 0);
	close(fd);
	return err;
}

static unsigned long section(const char *module, const char *name)
{
	char path[128], buf[64];

	snprintf(path, sizeof(path), "/sys/module/%s/sections/%s", module, name);
	return slurp(path, buf, sizeof(buf)) > 0 ? strtoul(buf, NULL, 0) : 0;
}

/*
 * Where the module's functions are, while it is loaded: symbols of its file, and where its text
 * went. /proc/kallsyms has the same, behind a hundred thousand symbols of the kernel, which takes
 * an emulated machine a second to print.
 */
void module_functions(struct slot *s, const char *module)
{
	static char file[1 << 20];
	unsigned long text = section(module, ".text");
	Elf64_Ehdr *elf = (void *)file;
	Elf64_Shdr *sections;
	const char *sep = "";
	char path[64];

	slot_extra(s, ", \"module\": \"%s\", \"text\": \"0x%lx\", \"functions\": {", module, text);
	snprintf(path, sizeof(path), "/modules/%s.ko", module);
	/* A file that does not fit the buffer lacks its section headers, which are at its end. */
	if (slurp(path, file, sizeof(file)) < (int)sizeof(*elf) ||
	    elf->e_shoff + elf->e_shnum * sizeof(*sections) > sizeof(file))
		goto out;
	sections = (void *)(file + elf->e_shoff);
	for (int i = 0; i < elf->e_shnum; i++) {
		Elf64_Shdr *names = &sections[sections[i].sh_link];
		Elf64_Sym *sym = (void *)(file + sections[i].sh_offset);

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		for (size_t n = sections[i].sh_size / sizeof(*sym); n--; sym++) {
			const char *name = file + names->sh_offset + sym->st_name;
			const char *home = file + sections[elf->e_shstrndx].sh_offset;

			if (ELF64_ST_TYPE(sym->st_info) != STT_FUNC || sym->st_shndx >= elf->e_shnum ||
			    strcmp(home + sections[sym->st_shndx].sh_name, ".text"))
				continue;
			slot_extra(s, "%s\"%s\": \"0x%lx\"", sep, name, text + sym->st_value);
			sep = ", ";
		}
	}
out:
	slot_extra(s, "}");
}

static int run(struct slot *s, const char *module, uint64_t words, enum trace mode)
{
	char path[128];
	struct kc k;
	int fd;

	if (module_load(module) && errno != EEXIST) {
		slot_missing(s, "module %s: %s", module, strerror(errno));
		return -1;
	}
	module_functions(s, module);
	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/run", module);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) {
		slot_missing(s, "%s: %s", path, strerror(errno));
		return -1;
	}
	if (kc_setup(s, &k, words) || kc_enable(s, &k, mode))
		return -1;
	/* The functions are called with 3, so many times. */
	if (write(fd, "3", 1) != 1)
		slot_missing(s, "write %s: %s", path, strerror(errno));
	kc_disable(s, &k);
	close(fd);
	slot_call(s, "write 3 to %s", path);
	slot_object(s, &k, 1, 2);
	return 0;
}

static void st_keep(struct slot *s)
{
	run(s, "kcovlab_keep", 35 * PAGE_WORDS, TRACE_PC);
}

static void st_keep_cmp(struct slot *s)
{
	run(s, "kcovlab_keep", 36 * PAGE_WORDS, TRACE_CMP);
}

static void st_gone(struct slot *s)
{
	if (run(s, "kcovlab_gone", 37 * PAGE_WORDS, TRACE_PC))
		return;
	if (syscall(SYS_delete_module, "kcovlab_gone", O_NONBLOCK))
		slot_missing(s, "delete_module: %s", strerror(errno));
	slot_call(s, "delete_module");
	slot_extra(s, ", \"unloaded\": true");
}

void states_modules(void)
{
	/* In this order: both use kcovlab_keep, and one of them has to load it. */
	slot_wait(spawn_state("kc-keep", st_keep), 30000);
	spawn_state("kc-keep-cmp", st_keep_cmp);
	spawn_state("kc-gone", st_gone);
}
