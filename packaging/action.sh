#!/usr/bin/env bash
# The step of action.yml: puts uiw into INPUT_PREFIX and what later steps need into the runner's files.
set -euo pipefail

prefix=$INPUT_PREFIX
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The runner's files have a line for each variable.
for value in "$prefix" "$INPUT_PERSONA"; do
	case $value in
	*$'\n'*)
		echo "error: an input has a line break" >&2
		exit 2
		;;
	esac
done
case $INPUT_PERSONA in
"" | iwarp | roce | ib) ;;
*)
	echo "error: persona $INPUT_PERSONA: expected iwarp, roce or ib" >&2
	exit 2
	;;
esac

# The runner's files name it, for steps that may run elsewhere.
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
if [ -x "$prefix/bin/uiw" ]; then
	echo "uiw is in $prefix"
elif [ -n "$INPUT_PACKAGE" ]; then
	tar -xf "$INPUT_PACKAGE" --no-overwrite-dir --strip-components=1 -C "$prefix"
else
	(cd "$source" && cargo xtask install --prefix "$prefix")
fi

# As `uiw run` finds them.
libraries=
for folder in lib/uiw lib64/uiw lib; do
	if [ -e "$prefix/$folder/libibverbs.so.1" ]; then
		libraries=$prefix/$folder
		break
	fi
done
if [ ! -x "$prefix/bin/uiw" ] || [ -z "$libraries" ]; then
	echo "error: $prefix has no bin/uiw, or no libibverbs.so.1 in lib/uiw, lib64/uiw or lib: is the package a tarball of \`cargo xtask dist\`?" >&2
	exit 1
fi
version=$("$prefix/bin/uiw" --version)
{
	echo "prefix=$prefix"
	echo "version=${version#uiw }"
} >>"$GITHUB_OUTPUT"
echo "$prefix/bin" >>"$GITHUB_PATH"
{
	echo "UIW_LIB=$libraries"
	if [ -n "$INPUT_PERSONA" ]; then
		echo "UIW_PERSONA=$INPUT_PERSONA"
	fi
	if [ "$INPUT_EXPORT" = true ]; then
		echo "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	fi
} >>"$GITHUB_ENV"
echo "$version"
"$prefix/bin/uiw" devices
