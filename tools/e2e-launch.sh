#!/usr/bin/env bash
# Runs hello and digits under other launchers and under tuttirun by ssh and by agents, and a program
# of MPICH under tuttirun, as docs/launchers.md says, and checks what they print. It needs root and
# Debian's apt for the packages that are missing, and root for several hosts. What cannot be had is
# skipped, with a line. The last line counts. A skip is a failure if this is root and apt works.
#
#   e2e-launch.sh             needs bin/hello, bin/hello-etcd, bin/digits and bin/tuttirun: make build
#   e2e-launch.sh all         also runs the slow cases
#   e2e-launch.sh all ssh     runs only these groups of cases; the end of this file has their names
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The variables of another job would describe the jobs of this script.
for name in ${!TUTTI_@} ${!SLURM_@} ${!PMI_@} ${!PMIX_@} ${!OMPI_@} ${!TORCHELASTIC_@} RANK WORLD_SIZE LOCAL_RANK \
	LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT JOB_COMPLETION_INDEX TF_CONFIG DMLC_ROLE; do
	unset "$name"
done
export TUTTI_REPORT_BOOTSTRAP=1
work=$(mktemp -d)
export HOSTS_LAB=$work/hosts SLURM_LAB=$work/slurm
trap 'tools/hosts down || :; HOSTS_LAB=$work/hosts6 tools/hosts down || :; HOSTS_LAB=$work/hosts8 tools/hosts down || :; rm -rf "$work" || :' EXIT
ran=0 skipped=()

# The Debian packages of the cases.
packages=(iproute2 mpich gcc libc6-dev openmpi-bin munge slurm-client slurmctld slurmd libpmix-dev etcd-server nftables
	openssh-server openssh-client procps)
# excuse says why a skip is no failure: apt cannot be used, or does not work.
excuse=

# has succeeds if a package is there: one of its programs, or else the package itself.
has() {
	case $1 in
	iproute2) command -v ip ;;
	mpich) command -v mpiexec.hydra ;;
	openmpi-bin) command -v mpirun.openmpi ;;
	munge) command -v munged ;;
	slurm-client) command -v srun ;;
	etcd-server) command -v etcd ;;
	nftables) command -v nft ;;
	openssh-server) [ -x /usr/sbin/sshd ] ;;
	openssh-client) command -v ssh && command -v ssh-keygen ;;
	procps) command -v ps ;;
	gcc | slurmctld | slurmd) command -v "$1" ;;
	*) dpkg -s "$1" ;;
	esac >/dev/null 2>&1
}

# install_packages installs the packages that are missing, all at once. It tries each package first,
# because one that cannot be installed would fail all. An update may fail because of a mirror that
# has none of the packages. The limit of the last step is far above what it takes: half an
# installation would break whatever uses apt next.
install_packages() {
	local p wanted=()
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		excuse="it takes root and apt-get to install it"
		return
	fi
	for p in "${packages[@]}"; do has "$p" || wanted+=("$p"); done
	[ "${#wanted[@]}" -gt 0 ] || return 0
	echo "installing ${wanted[*]}"
	local end=$((SECONDS + 180))
	aptget update || excuse="apt-get update has failed"
	for p in "${!wanted[@]}"; do
		aptget install --simulate "${wanted[p]}" || unset "wanted[p]"
	done
	[ "${#wanted[@]}" -gt 0 ] || return 0
	if ! aptget install --download-only "${wanted[@]}"; then
		excuse="its download has failed"
		return
	fi
	end=$((SECONDS + 300))
	aptget install --no-download "${wanted[@]}" || excuse="apt-get install has failed"
}

# aptget COMMAND... runs apt-get, which ends before $end. If another process uses apt, aptget waits.
# If apt-get fails, aptget prints what it has printed. Without Error-Mode, an update that reaches no
# mirror succeeds.
aptget() {
	local code
	until LC_ALL=C DEBIAN_FRONTEND=noninteractive timeout -k 10 $((end > SECONDS ? end - SECONDS : 1)) \
		apt-get -qy --no-install-recommends -o Acquire::Retries=3 -o APT::Update::Error-Mode=any "$@" \
		>"$work/apt" 2>&1 </dev/null; do
		code=$?
		if ! grep -q '^E: Could not get lock' "$work/apt" || ((SECONDS >= end)); then
			cat "$work/apt"
			echo "apt-get $*: got exit code $code (124 or 137: the time was up)"
			return 1
		fi
		sleep 1
	done
}

# skip records cases that cannot run, and why.
skip() {
	echo "SKIPPED: $1: $2"
	skipped+=("$1")
	mkdir -p out && echo "e2e-launch: $1: $2" >>out/skipped
}

# need NAME PACKAGE... succeeds if the packages are there. Otherwise it skips the cases NAME.
need() {
	local name=$1 p
	shift
	for p; do
		has "$p" || { skip "$name" "Debian's package $p is missing: ${excuse:-apt-get works, and cannot install it}"; return 1; }
	done
}

# need_hosts NAME succeeds if the pseudo-hosts are up. Otherwise it skips the cases NAME.
need_hosts() {
	[ -e "$work/ranks" ] || ! skip "$1" "no pseudo-hosts here: they need root, iproute2 and network namespaces"
}

# failed ends the run after a case has failed. It prints what the case has printed, and the last
# lines of the logs of Slurm and of sshd.
failed() {
	cat "$work"/out*
	tail -n 5 "$SLURM_LAB"/*.log "$work"/log.* 2>/dev/null || :
	echo "FAILED: $*"
	exit 1
}

# job NAME PATTERN COUNT COMMAND... runs a command, which ends within $limit seconds (120) with exit
# code 0, and prints COUNT lines that match the pattern.
job() {
	local name=$1 pattern=$2 count=$3 code=0 begin=$SECONDS lines
	shift 3
	timeout -k 5 "${limit:-120}" "$@" >"$work/out" 2>&1 </dev/null || code=$?
	lines=$(grep -cE "$pattern" "$work/out" || :)
	if [ "$code" != 0 ] || [ "$lines" != "$count" ]; then
		failed "$name: got exit code $code and $lines lines of \"$pattern\", want 0 and $count: $*"
	fi
	echo "ok: $name ($((SECONDS - begin)) s)"
	ran=$((ran + 1))
}

# fails NAME PATTERN COMMAND... runs a command, which ends within 120 s with another exit code than
# 0, and prints a line that matches the pattern. The launcher may end other ranks before they print.
# timeout ends with 124, or with 137 if the command has ignored its first signal.
fails() {
	local name=$1 pattern=$2 code=0 begin=$SECONDS
	shift 2
	timeout -k 5 120 "$@" >"$work/out" 2>&1 </dev/null || code=$?
	if [[ $code == @(0|124|137) ]] || ! grep -qE "$pattern" "$work/out"; then
		failed "$name: got exit code $code, want an error of its own and \"$pattern\": $*"
	fi
	echo "ok: $name ($((SECONDS - begin)) s)"
	ran=$((ran + 1))
}

# hydra is MPICH's mpiexec. Under the name mpiexec there may be another launcher's.
hydra_cases() {
	need hydra mpich || return 0
	local one=("${here[@]}" mpiexec.hydra)
	job "hydra: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${one[@]}" -n 4 bin/hello
	job "hydra: the report" 'rank [01] of 2 on .*, by PMI-1 at PMI_FD' 2 "${one[@]}" -n 2 bin/hello
	job "hydra: PMI_PORT" 'rank [01] of 2 on .*, by PMI-1 at PMI_PORT' 2 "${one[@]}" -pmi-port -n 2 bin/hello
	# Rank 0 waits for rank 1, which has failed. Hydra ends it.
	fails "hydra: a secret file that is missing" 'TUTTI_SECRET_FILE=.*cannot be read' \
		"${one[@]}" -n 1 bin/hello : -n 1 env TUTTI_SECRET_FILE="$work/none" bin/hello
	job "hydra: digits" "$digits_line" 1 "${one[@]}" -n 2 bin/digits "${digits[@]}"
	# The shell closes PMI_FD, and the variables are left over.
	fails "hydra: a stale PMI_FD" 'PMI_SIZE=2 says that mpiexec' \
		"${one[@]}" -n 2 bash -c 'exec {PMI_FD}>&-; bin/hello'
	# Hydra waits for ever for a rank that ends in this way.
	fails "hydra: a rank that ends before Init" 'not all ranks have called Init' \
		"${one[@]}" -genv TUTTI_TIMEOUT 3 -n 2 bash -c '[ "$PMI_RANK" = 0 ] || exit 0; exec bin/hello'
	job "hydra: ranks that end without Close" 'rank [01] of 2 ends' 2 "${one[@]}" -n 2 "$work/leave"
	need_hosts "hydra on two hosts" || return 0
	local remote=("${one[@]}" -launcher ssh -launcher-exec "$work/remote" -hosts n1:2,n2:2 -n 4)
	job "hydra on two hosts: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${remote[@]}" "$PWD/bin/hello"
	job "hydra on two hosts: the warning" 'the job.s secret has passed through the launcher' 1 "${remote[@]}" "$PWD/bin/hello"
	job "hydra on two hosts: a secret file, no warning" 'the job.s secret has passed' 0 \
		"${remote[@]}" -genv TUTTI_SECRET_FILE "$work/secret" "$PWD/bin/hello"
	job "hydra on two hosts: digits" "$digits_line" 1 "${remote[@]}" "$PWD/bin/digits" "${digits[@]}"
	fails "hydra on two hosts: PMI_PORT without a secret" 'no secret.*openssl rand -hex 16' \
		"${remote[@]}" -pmi-port "$PWD/bin/hello"
}

# tuttirun_cases runs a program that is linked with MPICH. Debian's package mpich brings the library
# without its header files, where MPI_COMM_WORLD is this number.
tuttirun_cases() {
	local local=("${here[@]}" bin/tuttirun)
	job "tuttirun: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${local[@]}" -np 4 bin/hello
	job "tuttirun: digits" "$digits_line" 1 "${local[@]}" -np 4 bin/digits "${digits[@]}"
	job "tuttirun: two jobs at once" "$digits_line" 2 "$work/twice" "${local[@]}" -np 2 bin/digits -epochs 3 -out OUTDIR
	job "tuttirun: a range of ports" 'rank [0-2] of 3 has' 3 "${local[@]}" -np 3 -x TUTTI_LISTEN=:7000-7001 bin/hello
	fails "tuttirun: a range of ports that is used up" 'TUTTI_LISTEN=":7000-7001" is used up: other processes listen' \
		"${local[@]}" -np 4 -x TUTTI_LISTEN=:7000-7001 bin/hello
	need "tuttirun: MPICH" mpich gcc libc6-dev || return 0
	cat >"$work/mpich.c" <<'END'
int MPI_Init(int *, char ***), MPI_Comm_rank(int, int *), MPI_Comm_size(int, int *), MPI_Barrier(int), MPI_Abort(int, int), MPI_Finalize(void);
int printf(const char *, ...);
int main(int argc, char **argv) {
	int world = 0x44000000, rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(world, &rank);
	MPI_Comm_size(world, &size);
	if (argc > 1 && rank == 1) MPI_Abort(world, 7);
	MPI_Barrier(world);
	printf("rank %d of %d\n", rank, size);
	return MPI_Finalize();
}
END
	job "tuttirun: gcc links with MPICH" 'error' 0 gcc -o "$work/mpich" "$work/mpich.c" -l:libmpich.so.12
	job "tuttirun: MPICH" '^rank [0-3] of 4$' 4 "${here[@]}" bin/tuttirun -np 4 "$work/mpich"
	fails "tuttirun: MPI_Abort" 'rank 1 .* aborted the job by PMI with exit code 7' "${here[@]}" bin/tuttirun -np 4 "$work/mpich" abort
	job "tuttirun: mpiexec in a rank" '^rank [01] of 2$' 4 "${here[@]}" bin/tuttirun -np 2 mpiexec.hydra -n 2 "$work/mpich"
	job "tuttirun in a rank of mpiexec" '^rank [01] of 2$' 4 "${here[@]}" mpiexec.hydra -n 2 bin/tuttirun -np 2 "$work/mpich"
}

# install_cases installs below a directory whose name has a space, and runs what is there.
install_cases() {
	local to="$work/a package" files=(find "$work/a package" ! -type d)
	local mpirun=("${here[@]}" env PATH="$to/opt/bin:$PATH" mpirun)
	job "install" 'rror' 0 make -s install DESTDIR="$to" PREFIX=/opt
	job "install: the files" '/opt/(bin/tutti(run|bench)|share/(man/man1/tuttirun.1|.*/_?tuttirun(\.fish)?))$' 6 "${files[@]}"
	job "install: MPIRUN=1" 'rror' 0 make -s install DESTDIR="$to" PREFIX=/opt MPIRUN=1
	job "install: the links" '/opt/bin/mpi(run|exec)$' 2 "${files[@]}"
	job "install: mpirun" 'rank [01] of 2 has' 2 "${mpirun[@]}" -np 2 --bind-to none bin/hello
	job "install: mpiexec" 'rank [01] of 2 has' 2 "${mpirun[@]/%mpirun/mpiexec}" -n 2 bin/hello
	job "install: completion" '_tuttirun tuttirun$' 1 \
		bash -c 'source "$1" && complete -p tuttirun' bash "$to/opt/share/bash-completion/completions/tuttirun"
}

# openmpi is Open MPI's mpirun. Under the name mpirun there may be another launcher's.
openmpi_cases() {
	need mpirun openmpi-bin || return 0
	local one=("${here[@]}" mpirun.openmpi --allow-run-as-root --oversubscribe)
	job "mpirun: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${one[@]}" -np 4 bin/hello
	# RANK and WORLD_SIZE may be those of the pod in which mpirun runs.
	job "mpirun: the report" 'rank [01] of 2 on .*, by PMIx' 2 \
		env RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "${one[@]}" -np 2 bin/hello
	job "mpirun: digits" "$digits_line" 1 "${one[@]}" --bind-to none -np 2 bin/digits "${digits[@]}"
	# mpirun --bind-to core gives a rank all hardware threads of a core, which may be two.
	local cpu warnings=0
	cpu=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')
	! grep -q '[-,]' /sys/devices/system/cpu/online || warnings=1
	job "mpirun: the warning of one core" 'may use only one core' "$warnings" \
		"${one[@]}" --bind-to none -np 2 taskset -c "$cpu" bin/hello
	# The variables of the server are left over from another job. Only Open MPI 4 sets the other one.
	local gone='for v in ${!PMIX_SERVER_URI@}; do export "$v=x.0;tcp4://127.0.0.1:1"; done
		unset OMPI_MCA_ess_base_jobid; exec bin/hello'
	if [[ $(mpirun.openmpi --version) == *' 4.'* ]]; then
		job "mpirun: no PMIx" 'rank [0-3] of 4 on .*, by OMPI_MCA_ess_base_jobid' 4 \
			"${one[@]}" -np 4 bash -c 'unset ${!PMIX_@}; exec bin/hello'
		job "mpirun: no PMIx, two jobs at once" 'rank [01] of 2 has' 4 "$work/twice" \
			"${one[@]}" -np 2 bash -c 'unset ${!PMIX_@}; exec bin/hello'
	fi
	fails "mpirun: a server that has gone" 'PMIx server 127.0.0.1:1 .*: connect: .*refused' \
		"${one[@]}" -np 2 bash -c "$gone"
	job "mpirun: the same with MASTER_ADDR" 'rank [01] of 2 on .*, by MASTER_ADDR' 2 \
		"${one[@]}" -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29517 -np 2 bash -c "$gone"
	# Rank 0 starts hello when mpirun has reaped rank 1. If rank 0 had connected before, mpirun would
	# end it, and sometimes print nothing.
	local ends='p='"$work/rank1"'
		if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then echo $$ >"$p"; exit; fi
		until read -r pid 2>/dev/null <"$p" && ! kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
		exec bin/hello'
	fails "mpirun: a rank that ends before Init" 'not all ranks have called Init|another rank has ended|exiting improperly' \
		"${one[@]}" -x TUTTI_TIMEOUT=3 -np 2 bash -c "$ends"
	job "mpirun: ranks that end without Close" 'rank [01] of 2 ends' 2 "${one[@]}" -np 2 "$work/leave"
	need_hosts "mpirun on two hosts" || return 0
	local remote=("${one[@]}" --mca plm_rsh_agent "$work/remote" -H n1:2,n2:2 -np 4)
	job "mpirun on two hosts: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${remote[@]}" "$PWD/bin/hello"
	job "mpirun on two hosts: the report" 'rank [0-3] of 4 on n[12], by PMIx' 4 "${remote[@]}" -x TUTTI_REPORT_BOOTSTRAP "$PWD/bin/hello"
	job "mpirun on two hosts: digits" "$digits_line" 1 "${remote[@]}" "$PWD/bin/digits" "${digits[@]}"
}

# slurm_cases runs srun on two nodes.
slurm_cases() {
	need_hosts slurm && need slurm munge slurm-client slurmctld slurmd || return 0
	limit=240 job "Slurm starts" 'n1 and n2 are idle' 1 tools/slurm start
	export SLURM_CONF=$SLURM_LAB/slurm.conf
	local run=(tools/slurm in srun -N 2 --ntasks-per-node=2) secret=(env TUTTI_SECRET_FILE="$work/secret")
	job "srun --mpi=pmi2: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${run[@]}" --mpi=pmi2 bin/hello
	job "srun --mpi=pmi2: the report" 'rank [0-3] of 4 on n[12], by PMI-1 at PMI_FD' 4 "${run[@]}" --mpi=pmi2 bin/hello
	job "srun --mpi=pmi2: digits" "$digits_line" 1 "${run[@]}" --mpi=pmi2 bin/digits "${digits[@]}"
	fails "srun --mpi=none without a secret" 'no secret.*openssl rand -hex 16' "${run[@]}" --mpi=none bin/hello
	job "srun --mpi=none, insecure plain" 'rank [0-3] of 4 has \[1.5 1\]' 4 env TUTTI_INSECURE_PLAIN=1 "${run[@]}" --mpi=none bin/hello
	job "srun --mpi=none: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${secret[@]}" "${run[@]}" --mpi=none bin/hello
	job "srun --mpi=none: digits" "$digits_line" 1 "${secret[@]}" "${run[@]}" --mpi=none bin/digits "${digits[@]}"
	job "srun, MASTER_ADDR" 'rank [0-3] of 4 on n[12], by MASTER_ADDR, SLURM_PROCID' 4 \
		"${secret[@]}" MASTER_ADDR=n1 "${run[@]}" --mpi=none bin/hello
	job "srun --mpi=none: two steps at once" 'rank [0-3] of 4 has' 8 "${secret[@]}" tools/slurm in salloc -N 2 --ntasks-per-node=2 \
		"$work/twice" srun --overlap -N 2 --ntasks-per-node=2 --mpi=none bin/hello
	# torchrun starts ranks in each task, which have the variables of the task, too.
	job "srun torchrun" 'rank [0-3] of 4 on n[12], by TORCHELASTIC_RUN_ID' 4 "${secret[@]}" \
		tools/slurm in srun -N 2 --ntasks-per-node=1 --mpi=pmi2 bash -c 'export PET_NNODES=2 PET_NODE_RANK=$SLURM_PROCID \
		TORCHELASTIC_RUN_ID=x WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29400
		for l in 0 1; do RANK=$((2 * SLURM_PROCID + l)) LOCAL_RANK=$l bin/hello & done; wait'
	job "srun --mpi=pmi2: names that do not resolve" 'rank [0-3] of 4 has' 4 "${run[@]}" --mpi=pmi2 \
		unshare -m sh -c 'mount --bind /dev/null /etc/hosts && exec bin/hello'
	# Without -K, srun lets the others run on. They notice the loss by themselves, and go on.
	job "srun --mpi=pmi2: a killed rank" '^3 ranks are left; 1 lost' 1 bash -c '! "$@"' bash "${run[@]}" --mpi=pmi2 bin/elastic -kill 1@50 -out "$work/digits"
	job "srun on one node needs no secret" 'rank [0-2] of 3 has \[1 1\]' 3 tools/slurm in srun -N 1 -n 3 --mpi=none bin/hello
	job "srun starts agents" 'rank [0-3] of 4 has \[1.5 1\]' 4 tools/slurm in salloc -N 2 --ntasks-per-node=1 bash -c '
		srun --mpi=none bin/tuttirun agent --allow-run-as-root --listen :14888 --secret-file "$1" &
		bin/tuttirun --agent-secret-file "$1" -H n1:2,n2:2 -np 4 "$PWD/bin/hello" && kill "$!" && wait' bash "$work/secret"
	printf '#!/bin/sh\nbin/hello\nsrun --mpi=pmi2 bin/hello\n' >"$work/batch"
	job "sbatch: the script ends" 'Submitted batch job' 1 \
		tools/slurm in sbatch --wait -N 2 --ntasks-per-node=2 -o "$work/out.batch" "$work/batch"
	job "sbatch: a job of one rank outside a step" 'rank 0 of 1 has' 1 cat "$work/out.batch"
	job "sbatch: a job of four ranks in a step" 'rank [0-3] of 4 has' 4 cat "$work/out.batch"
	rm "$work/out.batch"
	local script
	for script in digits digits-pmi2; do
		limit=120 job "sbatch $script: the script ends" 'Submitted batch job' 1 \
			tools/slurm in sbatch --wait -o "$work/out.batch" "deploy/slurm/$script.sbatch" "${digits[@]}"
		job "sbatch $script: digits" "$digits_line" 1 cat "$work/out.batch"
		rm "$work/out.batch"
	done
	# slurmd's plug-in pmix loads the library of libpmix-dev.
	if need "srun --mpi=pmix" libpmix-dev; then
		job "srun --mpi=pmix: hello" 'rank [0-3] of 4 on n[12], by PMIx' 4 "${run[@]}" --mpi=pmix bin/hello
		job "srun --mpi=pmix: digits" "$digits_line" 1 "${run[@]}" --mpi=pmix bin/digits "${digits[@]}"
	fi
	if has openmpi-bin; then
		job "mpirun inside salloc" 'rank [0-3] of 4 on n[12], by PMIx' 4 \
			tools/slurm in salloc -N 2 --ntasks-per-node=2 mpirun.openmpi --allow-run-as-root -x TUTTI_REPORT_BOOTSTRAP -np 4 bin/hello
	fi
	if has openmpi-bin; then
		job "mpirun inside salloc: digits" "$digits_line" 1 tools/slurm in salloc -N 2 --ntasks-per-node=2 \
			mpirun.openmpi --allow-run-as-root -np 4 bin/digits "${digits[@]}"
	fi
	if has mpich; then
		job "mpiexec.hydra inside salloc" 'rank [0-3] of 4 on n[12], by PMI-1' 4 \
			tools/slurm in salloc -N 2 --ntasks-per-node=2 mpiexec.hydra -n 4 bin/hello
	fi
}

# env_cases runs ranks on two hosts, each with the variables of its own that another launcher would
# set.
env_cases() {
	need_hosts variables || return 0
	local torch='RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=n1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=x'
	job "torchrun-like variables" 'rank [01] of 2 on n[12], by TORCHELASTIC_RUN_ID' 2 "$work/ranks" "$torch"
	job "Indexed-Job-like variables" 'rank [01] of 2 on n[12], by MASTER_ADDR, JOB_COMPLETION_INDEX' 2 \
		"$work/ranks" 'JOB_COMPLETION_INDEX=$r WORLD_SIZE=2 MASTER_ADDR=n1'
	job "torchrun-like variables: digits" "$digits_line" 1 "$work/ranks" "$torch" "bin/digits ${digits[*]}"
	job "Indexed-Job-like variables: digits" "$digits_line" 1 \
		"$work/ranks" 'JOB_COMPLETION_INDEX=$r WORLD_SIZE=2 MASTER_ADDR=n1' "bin/digits ${digits[*]}"
	# Each pod has the name JOB-INDEX, and its domain only in its own hosts file.
	printf '10.77.0.11 pi-0.pi.default.svc pi-0\n10.77.0.12 pi-1.pi.default.svc pi-1\n' >"$work/pods"
	job "Indexed Job: the names of pods" 'rank [01] of 2 on pi-[01], by JOB_COMPLETION_INDEX' 2 \
		"$work/ranks" 'JOB_COMPLETION_INDEX=$r WORLD_SIZE=2' \
		"unshare -u -m sh -c \"hostname pi-\$r; mount --bind $work/pods /etc/hosts; exec bin/hello\""
	job "a list of hosts" 'rank [01] of 2 on n[12], by TUTTI_HOSTS, this machine' 2 "$work/ranks" 'TUTTI_HOSTS=n1:7000,n2:7000'
	mkdir -m 700 "$work/meet"
	job "a shared directory" 'rank [01] of 2 on n[12], by TUTTI_STORE, TUTTI_RANK' 2 \
		"$work/ranks" "TUTTI_SECRET_FILE= TUTTI_STORE=file://$work/meet "'TUTTI_RANK=$r TUTTI_SIZE=2'
	job "a shared directory: digits" "$digits_line" 1 \
		"$work/ranks" "TUTTI_SECRET_FILE= TUTTI_STORE=file://$work/meet "'TUTTI_RANK=$r TUTTI_SIZE=2' "bin/digits ${digits[*]}"
}

# etcd_cases runs ranks on two hosts, which meet in an etcd on the first of them.
etcd_cases() {
	need_hosts etcd && need etcd etcd-server || return 0
	tools/hosts in n1 etcd --data-dir "$work/etcd" --listen-client-urls http://0.0.0.0:2379 \
		--advertise-client-urls http://n1:2379 >"$work/out.etcd" 2>&1 </dev/null &
	local etcd=$!
	# The ranks wait until etcd answers.
	job "etcd" 'rank [01] of 2 on n[12], by TUTTI_STORE, TUTTI_RANK' 2 \
		"$work/ranks" 'TUTTI_STORE=etcd://n1:2379/tutti TUTTI_RANK=$r TUTTI_SIZE=2' bin/hello-etcd
	job "etcd: digits" "$digits_line" 1 "$work/ranks" 'TUTTI_STORE=etcd://n1:2379/tutti TUTTI_RANK=$r TUTTI_SIZE=2' \
		"$work/digits-etcd ${digits[*]}"
	fails "etcd: a program without it" 'pass comm.WithStore\(etcd.New' \
		"$work/ranks" 'TUTTI_STORE=etcd://n1:2379/tutti TUTTI_RANK=$r TUTTI_SIZE=2'
	fails "etcd: no secret" 'no secret.*openssl rand -hex 16' \
		"$work/ranks" 'TUTTI_SECRET_FILE= TUTTI_STORE=etcd://n1:2379/tutti TUTTI_RANK=$r TUTTI_SIZE=2' bin/hello-etcd
	kill "$etcd"
	wait "$etcd" || :
}

# start_sshd HOST... starts a real sshd on each host that has none, with keys of its own. The user's
# and the system's configuration of ssh are not used.
start_sshd() {
	local host key
	mkdir -p /run/sshd # sshd wants it, also for other places of its files
	if [ ! -e "$work/ssh_config" ]; then
		for key in host user other; do ssh-keygen -q -t ed25519 -N '' -f "$work/key.$key"; done
		cp "$work/key.user.pub" "$work/authorized"
		printf '%s\n' "HostKey $work/key.host" "AuthorizedKeysFile $work/authorized" 'StrictModes no' 'UsePAM no' \
			'PermitRootLogin prohibit-password' 'PasswordAuthentication no' 'KbdInteractiveAuthentication no' >"$work/sshd_config"
		printf 'n? %s\n' "$(cat "$work/key.host.pub")" >"$work/known"
		printf 'n? %s\n' "$(cat "$work/key.other.pub")" >"$work/changed"
		printf '%s\n' "IdentityFile $work/key.user" 'IdentitiesOnly yes' 'IdentityAgent none' \
			"UserKnownHostsFile $work/known" 'GlobalKnownHostsFile /dev/null' >"$work/ssh_config"
		sed 's/key.user/key.other/' "$work/ssh_config" >"$work/ssh_config.other"
	fi
	for host; do
		[ -e "$HOSTS_LAB/sshd.$host" ] ||
			tools/hosts in "$host" /usr/sbin/sshd -f "$work/sshd_config" -o "PidFile=$HOSTS_LAB/sshd.$host" -E "$work/log.sshd.$host"
	done
	# A host with another version.
	printf '#!/bin/sh\necho tuttirun-remote 9.9.9/abc/linux n2\ncat\n' >"$work/other-version"
	chmod +x "$work/other-version"
}

# within SECONDS COMMAND... repeats a command until it succeeds. It fails after so many seconds.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < end)) || return 1
		sleep 0.1
	done
}

# empty COMMAND... succeeds if the command prints nothing.
empty() { [ -z "$("$@")" ]; }

# ranks_up succeeds when all four ranks of start_ranks run.
ranks_up() { [ -e "$work/up.0" ] && [ -e "$work/up.1" ] && [ -e "$work/up.2" ] && [ -e "$work/up.3" ]; }

# processes PATTERN prints the processes of all hosts whose command lines match. The pattern must not
# match itself.
processes() { ps -ww -eo pid=,args= | grep -E "$1" | grep -v grep || :; }

# none PATTERN succeeds if there is no such process.
none() { [ -z "$(processes "$1")" ]; }

# start_ranks NAME ARGUMENT starts four ranks that wait, in the background, and waits until they run.
# SIGINT ends them. With the argument stubborn, they go on.
start_ranks() {
	rm -f "$work"/up.* "$work/go"
	# Each rank waits for a file.
	cat >"$work/rank" <<END
#!/usr/bin/env bash
trap 'echo "rank \$TUTTI_RANK is asked to end"; exit 3' INT
[ "\$1" != stubborn ] || trap 'echo "rank \$TUTTI_RANK goes on"' INT
echo \$\$ >"$work/pid.\$TUTTI_RANK"
cat /proc/self/fd/3 >"$work/up.\$TUTTI_RANK.new"
mv "$work/up.\$TUTTI_RANK.new" "$work/up.\$TUTTI_RANK"
until [ -e "$work/go" ]; do sleep 0.2; done
echo "rank \$TUTTI_RANK is done"
END
	chmod +x "$work/rank"
	# In the background, SIGINT would be ignored.
	MARKER="the-value" env --default-signal=INT "${tuttirun[@]}" -np 4 -H n0:1,n1:1,n2:2 -x MARKER "$work/rank" "$2" >"$work/out" 2>&1 </dev/null &
	launcher=$!
	within 60 ranks_up || failed "$1: the ranks do not start"
}

# end_ranks NAME CODE PATTERN waits until the launcher has ended with that exit code, and has printed a
# line that matches PATTERN, unless that is empty. No rank may be left.
end_ranks() {
	local code=0
	wait "$launcher" 2>/dev/null || code=$? # bash would report a signal
	if [ "$code" != "$2" ] || { [ -n "$3" ] && ! grep -qE "$3" "$work/out"; }; then
		failed "$1: got exit code $code, want $2 and \"$3\""
	fi
	within 30 none "[b]ash $work/rank" || failed "$1: these are left: $(processes "[b]ash $work/rank")"
	echo "ok: $1"
	ran=$((ran + 1))
}

# ssh_cases runs tuttirun by ssh on three pseudo-hosts: n0, where it starts, n1 and n2.
ssh_cases() {
	need_hosts ssh && need ssh openssh-server openssh-client procps || return 0
	start_sshd n1 n2
	local tuttirun=("${here[@]}" "$PWD/bin/tuttirun" --mca plm_rsh_args "-F $work/ssh_config") launcher token line
	local three=("${tuttirun[@]}" -H n0:1,n1:1,n2:2 -np 4)
	job "ssh: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${three[@]}" "$PWD/bin/hello"
	job "ssh: rank 0 on another host" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${tuttirun[@]}" -H n1:2,n2:2 -np 4 "$PWD/bin/hello"
	local root='[ "$TUTTI_RANK" != 0 ] || echo "rank 0 is at $TUTTI_ROOT"; exec bin/hello'
	job "ssh: a range of ports" '^rank 0 is at n0:7000$' 1 "${three[@]}" -x TUTTI_LISTEN=:7000-7002 bash -c "$root"
	job "ssh: a range of ports on another host" '^rank 0 is at n1:7000$' 1 \
		"${tuttirun[@]}" -H n1:2,n2:2 -np 4 -x TUTTI_LISTEN=:7000-7002 bash -c "$root"
	job "ssh: digits" "$digits_line" 1 "${three[@]}" "$PWD/bin/digits" "${digits[@]}"
	job "ssh: quotes and newlines" "^\[\\$'a  \\\\'b\\\\' \"c\" \\\$d\\\\n'\]\[\\$'x\\\\ny'\]$" 4 \
		"${three[@]}" -x $'QUOTED=a  \'b\' "c" $d\n' bash -c 'printf "[%q][%q]\n" "$QUOTED" "$1"' bash $'x\ny'

	# Nothing of the job may be in a command line, except the launcher's own and the ranks' own.
	start_ranks "ssh: command lines" the-argument
	ps -ww -eo args= >"$work/ps"
	local tokens=($(cat "$work"/up.[0-3] | tr -c '[:alnum:]+/=' '\n' | grep -E '^.{16,}$' | sort -u))
	[ "${#tokens[@]}" -gt 20 ] || failed "ssh: command lines: got ${#tokens[@]} lines of keys and secrets, want those of four ranks"
	for token in "${tokens[@]}"; do
		! grep -qF -e "$token" "$work/ps" || failed "ssh: a command line has the secret $token"
	done
	! grep -F the-value "$work/ps" || failed "ssh: a command line has the value of -x"
	line=$(grep -F the-argument "$work/ps" | grep -vE "^bash $work/rank |bin/tuttirun --mca |^timeout ") || :
	[ -z "$line" ] || failed "ssh: a command line has an argument: $line"
	touch "$work/go"
	end_ranks "ssh: command lines" 0 'rank 3 is done'

	fails "ssh: an unknown host" '^tuttirun: .*n9: unknown host' "${tuttirun[@]}" -H n0,n9 -np 2 "$PWD/bin/hello"
	fails "ssh: a refused key" '^tuttirun: .*n1: it refuses the key' \
		"${tuttirun[@]}" --mca plm_rsh_args "-F $work/ssh_config.other" -H n0,n1 -np 2 "$PWD/bin/hello"
	job "ssh: --ssh-identity-file" 'rank [01] of 2 has' 2 \
		"${tuttirun[@]}" --mca plm_rsh_args "-F $work/ssh_config.other" -i "$work/key.user" -H n0,n1 -np 2 "$PWD/bin/hello"
	fails "ssh: an unknown key of a host" '^tuttirun: .*n1: its host key is not known' \
		"${tuttirun[@]}" --mca plm_rsh_args "-F $work/ssh_config -o UserKnownHostsFile=/dev/null" -H n0,n1 -np 2 "$PWD/bin/hello"
	fails "ssh: a changed key of a host" '^tuttirun: .*n1: its host key has changed' \
		"${tuttirun[@]}" --mca plm_rsh_args "-F $work/ssh_config -o UserKnownHostsFile=$work/changed" -H n0,n1 -np 2 "$PWD/bin/hello"
	fails "ssh: no sshd" '^tuttirun: .*n1: nothing listens on its port of ssh' "${tuttirun[@]}" -p 2222 -H n0,n1 -np 2 "$PWD/bin/hello"
	fails "ssh: no ssh" '^tuttirun: .*there is no .*none-ssh here' \
		"${tuttirun[@]}" --mca plm_rsh_agent none-ssh -H n0,n1 -np 2 "$PWD/bin/hello"
	fails "ssh: another version" '^tuttirun: .*n1: its tuttirun has version 9.9.9' \
		"${tuttirun[@]}" --launch-agent "$work/other-version" -H n0,n1 -np 2 "$PWD/bin/hello"
	# n2 does not have these files.
	mkdir "$work/part"
	cp bin/tuttirun bin/hello "$work/part"
	tools/hosts in n2 mount -t tmpfs none "$work/part"
	fails "ssh: tuttirun is missing on one host" "^tuttirun: .*n2: .*part/tuttirun is missing there" \
		"${tuttirun[@]}" --launch-agent "$work/part/tuttirun" -H n0,n1,n2 -np 3 "$PWD/bin/hello"
	fails "ssh: the program is missing on one host" "^tuttirun: cannot start .*part/hello.* on n2" "${three[@]}" "$work/part/hello"
	job "ssh: --preload-binary" 'rank [0-3] of 4 has \[1.5 1\]' 4 \
		"${three[@]}" --preload-binary --tmpdir "$work/part" "$work/part/hello"
	within 30 empty tools/hosts in n2 ls -A "$work/part" || failed "ssh: --preload-binary: the program is left"
	tools/hosts in n2 mount -o remount,size=64k "$work/part"
	fails "ssh: a full disk at --preload-binary" "^tuttirun: cannot start ranks on n2: hello: write $work/part/.*: no space left on device: .* --tmpdir" \
		"${three[@]}" --preload-binary --tmpdir "$work/part" "$work/part/hello"
	tools/hosts in n2 umount "$work/part"

	start_ranks "ssh: a killed launcher" x
	kill -9 "$launcher"
	end_ranks "ssh: a killed launcher" 137 ''
	start_ranks "ssh: a killed ssh" x
	kill -9 "$(processes "^ *[0-9]+ ssh .*$work/ssh_config.* n1 exec" | awk '{ print $1; exit }')"
	end_ranks "ssh: a killed ssh" 255 'n1'
	start_ranks "ssh: a killed rank" x
	kill -9 "$(cat "$work/pid.3")"
	end_ranks "ssh: a killed rank" 137 'rank 3 .*n2.*'
	start_ranks "ssh: Ctrl-C" x
	kill -INT "$launcher"
	end_ranks "ssh: Ctrl-C" 3 'rank 3 is asked to end'
	start_ranks "ssh: Ctrl-C twice" stubborn
	kill -INT "$launcher"
	within 60 grep -q 'rank 3 goes on' "$work/out" || failed "ssh: Ctrl-C twice: the first has not reached rank 3"
	kill -INT "$launcher"
	end_ranks "ssh: Ctrl-C twice" 130 'asked to end .SIGINT., and was ended'
	rm -f "$work/go"
	"${three[@]}" --timeout 3 "$work/rank" x >"$work/out" 2>&1 </dev/null &
	launcher=$!
	end_ranks "ssh: --timeout" 124 'has not ended within 3s .--timeout.'
	job "ssh: two jobs at once" "$digits_line" 2 "$work/twice" "${three[@]}" "$PWD/bin/digits" -epochs 3 -out OUTDIR
	[ -z "$all" ] || cut_cases
}

# cut_cases cut a host's link, for less than the silence limit, and until both sides have ended.
cut_cases() {
	start_ranks "ssh: a short cut" x
	tools/hosts cut n1
	sleep 3
	tools/hosts heal n1
	sleep 12 # what either side counts as silence would have ended the job by now
	touch "$work/go"
	end_ranks "ssh: a short cut" 0 'rank 1 is done'
	start_ranks "ssh: a long cut" x
	tools/hosts cut n1
	within 60 none "[b]ash $work/rank" || failed "ssh: a long cut: these are left: $(processes "[b]ash $work/rank")"
	end_ranks "ssh: a long cut" 255 'n1.* silent'
	tools/hosts heal n1
}

# start_agent HOST starts tuttirun agent there, and waits until it listens. agents has its process.
declare -A agents
start_agent() {
	rm -f "$work/out.agent.$1"
	tools/hosts in "$1" bin/tuttirun agent --allow-run-as-root --listen "$1" --secret-file "$work/secret" \
		>"$work/out.agent.$1" 2>&1 </dev/null &
	agents[$1]=$!
	disown
	within 60 grep -qs 'accepts launchers' "$work/out.agent.$1" || failed "agent: $1 has none"
}

# agent_cases runs tuttirun by agents on three pseudo-hosts, without ssh: n0, where it starts, n1 and
# n2.
agent_cases() {
	need_hosts agent && need agent procps || return 0
	local tuttirun=("${here[@]}" "$PWD/bin/tuttirun" --agent-secret-file "$work/secret") launcher
	local three=("${tuttirun[@]}" -H n0:1,n1:1,n2:2 -np 4)
	fails "agent: none" '^tuttirun: .*n[12]: agent at port 14888: no agent is there' "${three[@]}" "$PWD/bin/hello"
	start_agent n1
	start_agent n2
	job "agent: hello" 'rank [0-3] of 4 has \[1.5 1\]' 4 "${three[@]}" "$PWD/bin/hello"
	job "agent: digits" "$digits_line" 1 "${three[@]}" "$PWD/bin/digits" "${digits[@]}"
	mkdir "$work/sent" # n2 does not have what is there
	cp bin/hello "$work/sent"
	tools/hosts in n2 mount -t tmpfs none "$work/sent"
	job "agent: --preload-binary" 'rank [0-3] of 4 has \[1.5 1\]' 4 \
		"${three[@]}" --preload-binary --tmpdir "$work/sent" "$work/sent/hello"
	# A host removes the program when its connection has ended, and tuttirun may end before.
	within 30 empty tools/hosts in n2 ls -A "$work/sent" || failed "agent: --preload-binary: the program is left"
	tools/hosts in n2 umount "$work/sent"
	job "agent: two jobs at once" "$digits_line" 2 "$work/twice" "${three[@]}" "$PWD/bin/digits" -epochs 3 -out OUTDIR
	(umask 077; od -An -tx1 -N16 /dev/urandom >"$work/secret.other")
	fails "agent: another secret" '^tuttirun: .*n1: agent at port 14888: it has another secret' \
		"${here[@]}" "$PWD/bin/tuttirun" --agent-secret-file "$work/secret.other" -H n1 -np 1 "$PWD/bin/hello"
	start_ranks "agent: a killed launcher" x
	kill -9 "$launcher"
	end_ranks "agent: a killed launcher" 137 ''
	start_ranks "agent: a killed agent" x
	kill -9 "${agents[n1]}"
	end_ranks "agent: a killed agent" 255 'n[12]'
	if command -v systemd-analyze >/dev/null; then
		sed "s,/usr/local/bin/tuttirun,$PWD/bin/tuttirun,; s/^User=.*/User=daemon/" deploy/systemd/tuttirun-agent.service \
			>"$work/tuttirun-agent.service"
		job "agent: the unit for systemd" . 0 systemd-analyze verify "$work/tuttirun-agent.service"
	fi
}

# said TEXT succeeds if the elastic job has printed it.
said() { grep -q "$1" "$work/out.elastic"; }

# elastic_cases let ranks on other hosts kill themselves, rank 0 first, and tuttirun start them again.
# The slow cases train on n0, and add, cut off and heal other hosts meanwhile, which tuttirun reaches
# by agents, and by ssh.
elastic_cases() {
	need_hosts elastic || return 0
	job "elastic: rank 0 is killed, on another host than the launcher's" 'at most 1e-09' 1 \
		"${here[@]}" bin/tuttirun --mca plm_rsh_agent "$work/remote" -H n1:2,n2:2 -np 4 --min-np 2 --restart-ranks 2 \
		"$PWD/bin/elastic" -kill 0@60,3@120
	[ -n "$all" ] || return 0
	start_agent n1
	[ -n "${agents[n2]-}" ] || start_agent n2
	hosts_change "by agents" --agent-secret-file "$work/secret"
	need "elastic: by ssh" openssh-server openssh-client || return 0
	start_sshd n1 n2
	hosts_change "by ssh" --mca plm_rsh_args "-F $work/ssh_config"
}

# hosts_change NAME OPTION... is a case of elastic_cases. The options say how to reach the hosts.
hosts_change() {
	local name="elastic: hosts come and go, $1" hold=$work/hold begin=$SECONDS
	shift
	rm -rf "$hold"
	mkdir "$hold"
	# change EPOCH COMMAND... carries out a command while the training is in the epoch after that one.
	change() {
		touch "$hold/$1"
		"${@:2}"
	}
	list() { printf '%s\n' "$@" >"$work/list.new" && mv "$work/list.new" "$work/list"; }
	await() { within 90 said "$1" || failed "$name: nothing says \"$1\""; }
	list n0:1
	: >"$work/out.elastic"
	timeout -k 5 240 "${here[@]}" "$PWD/bin/tuttirun" -v "$@" --min-np 1 --restart-ranks 1 \
		--host-discovery-script "cat $work/list" "$PWD/bin/elastic" -epochs 6 -hold "$hold" >"$work/out.elastic" 2>&1 </dev/null &
	local job=$!
	await 'epoch 0 has 1 ranks'
	list n0:1 n1:1
	await 'so 2 ranks go on'
	change 1 tools/hosts cut n1
	await 'host n1: it has been silent'
	await 'so 1 ranks go on'
	change 2 list n0:1 n1:1 n2:2
	await 'so 3 ranks go on'
	change 3 tools/hosts heal n1
	await 'so 4 ranks go on'
	touch "$hold/4" "$hold/5"
	wait "$job" && said 'at most 1e-09' || failed "$name: got no success"
	echo "ok: $name ($((SECONDS - begin)) s)"
	ran=$((ran + 1))
}

# tree_cases runs ranks on eight hosts. n0 starts n1 and n2, which start the other hosts.
tree_cases() {
	[ -n "$all" ] || return 0
	need_hosts tree && need tree openssh-server openssh-client procps || return 0
	local -x HOSTS_LAB=$work/hosts8
	tools/hosts up 8
	start_sshd n{1..7}
	local tree=("${here[@]}" "$PWD/bin/tuttirun" --mca plm_rsh_args "-F $work/ssh_config" --fan-out 2 -H n0,n1,n2,n3,n4,n5,n6,n7)
	job "tree: hello" 'rank [0-7] of 8 has \[3.5 1\]' 8 "${tree[@]}" "$PWD/bin/hello"
	# When the launcher says that all ranks run, rank 1 kills the process of n1 that has started n3 and
	# n4. n3 has started n7.
	cat >"$work/on-the-way" <<END
#!/usr/bin/env bash
if [ "\$TUTTI_RANK" = 1 ]; then
	until [ "\$(grep -c 'rank [0-7] is process' "$work/out")" = 8 ]; do sleep 0.1; done
	kill -9 "\$PPID"
fi
exec sleep 98765
END
	chmod +x "$work/on-the-way"
	fails "tree: a killed host on the way" 'rank 3 .* n3, reached through n1; rank 4 .* n4, reached through n1; rank 7 .* n7, reached through n3' \
		"${tree[@]}" -v "$work/on-the-way"
	within 30 none 'sleep [9]8765' || failed "tree: a killed host on the way: these are left: $(processes 'sleep [9]8765')"
	tools/hosts down
}

# ipv6_cases runs ranks on three hosts that have no IPv4 address except loopback.
ipv6_cases() {
	need_hosts IPv6 || return 0
	local -x HOSTS_LAB=$work/hosts6
	tools/hosts up 3 6
	job "IPv6: variables" 'rank [01] of 2 on n[12], by MASTER_ADDR' 2 "$work/ranks" 'RANK=$r WORLD_SIZE=2 MASTER_ADDR=n1'
	mkdir -m 700 "$work/meet6"
	job "IPv6: a shared directory" 'rank [01] of 2 has' 2 \
		"$work/ranks" "TUTTI_STORE=file://$work/meet6 "'TUTTI_RANK=$r TUTTI_SIZE=2'
	start_agent n1
	start_agent n2
	job "IPv6: agents" 'rank [0-3] of 4 has \[1.5 1\]' 4 \
		"${here[@]}" bin/tuttirun --agent-secret-file "$work/secret" -H n0:1,n1:1,n2:2 -np 4 "$PWD/bin/hello"
	tools/hosts down
}

# doctor_cases breaks one thing at a time on n1. tuttirun doctor must find it.
doctor_cases() {
	need_hosts doctor || return 0
	ulimit -l 8192 || : # a container may have less, which is a fault
	# The probe of n1 begins with $BREAK.
	cat >"$work/break" <<END
#!/usr/bin/env bash
host=\$1
shift
[ "\$host" != n1 ] || set -- "\$BREAK \$*"
exec "$work/remote" "\$host" "\$@"
END
	chmod +x "$work/break"
	local n1=(tools/hosts in n1) list doctor
	doctor=("${here[@]}" bin/tuttirun doctor -H n0:2,n1:2,n2:2 --mca plm_rsh_agent "$work/break")
	job "doctor: healthy hosts" '^0 faults on 3 hosts$' 1 "${doctor[@]}"
	[ "$all" ] || return 0
	job "doctor: each pair is measured" '^n[0-2] +n[0-2] .* µs .*[GM]b/s' 6 "${doctor[@]}"
	job "doctor: JSON" '"faults": \[\]' 1 "${doctor[@]}" --json

	export BREAK='ulimit -l 64;'
	fails "doctor: tiny memlock" '^FAULT: n1: memory that may be locked: got 64 KiB' "${doctor[@]}"
	BREAK='ulimit -n 200;'
	fails "doctor: few files" '^FAULT: n1: open files: got a limit of 200' "${doctor[@]}"
	if grep -q '[-,]' /sys/devices/system/cpu/online; then
		BREAK="taskset -cp $(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/') \$\$ >/dev/null;"
		fails "doctor: one core" '^FAULT: n1: ranks may use only core' "${doctor[@]}"
	fi
	sed 's/0\.1\.0/0.1.9/g' bin/tuttirun >"$work/other"
	chmod +x "$work/other"
	BREAK="exec '$work/other' probe #"
	fails "doctor: another version" '^FAULT: n1: tuttirun is version 0.1.9' "${doctor[@]}"
	BREAK='exec /none/tuttirun probe #'
	fails "doctor: no tuttirun" '^FAULT: n1: .* is missing there' "${doctor[@]}"
	BREAK='echo Welcome;'
	fails "doctor: a login script prints" '^FAULT: n1: facts: got "Welcome", want the answer' "${doctor[@]}"
	unset BREAK

	# Each host has its own view of these files.
	"${n1[@]}" mount -t tmpfs -o size=32m tmpfs /dev/shm
	"${n1[@]}" dd if=/dev/zero of=/dev/shm/full bs=1M count=30 status=none
	fails "doctor: a full /dev/shm" '^FAULT: n1: /dev/shm: got 2 MiB free of 32 MiB' "${doctor[@]}"
	"${n1[@]}" umount /dev/shm
	sed 's/10.77.0.12/10.77.0.99/' "$HOSTS_LAB/etc-hosts" >"$work/etc-hosts"
	"${n1[@]}" mount --bind "$work/etc-hosts" /etc/hosts
	fails "doctor: a wrong entry" '^FAULT: n1: n2 is 10.77.0.99 there, but n2 has 10.77.0.12' "${doctor[@]}"
	sed 's/10.77.0.12/127.0.1.1/' "$HOSTS_LAB/etc-hosts" >"$work/etc-hosts"
	fails "doctor: an entry of loopback" '^FAULT: n1: n2 is 127.0.1.1 there: loopback' "${doctor[@]}"
	"${n1[@]}" umount /etc/hosts
	"${n1[@]}" ip link set eth0 mtu 1400
	fails "doctor: MTUs that differ" '^FAULT: n1: eth0 has MTU 1400, and eth0 of n0' "${doctor[@]}"
	"${n1[@]}" ip link set eth0 mtu 1500

	if need "doctor, a firewall" nftables; then
		list='table inet t { chain in { type filter hook input priority 0; iifname "eth0"'
		"${n1[@]}" nft "$list tcp flags & (syn | ack) == syn drop; }; }"
		fails "doctor: ports that drop" '^FAULT: n2: cannot connect to n1 .*timeout' "${doctor[@]}"
		"${n1[@]}" nft flush ruleset
		"${n1[@]}" nft "$list tcp flags & (syn | ack) == syn reject with tcp reset; }; }"
		fails "doctor: ports that refuse" '^FAULT: n2: cannot connect to n1 .*although the probe listens there' "${doctor[@]}"
		"${n1[@]}" nft flush ruleset
		"${n1[@]}" nft "$list meta length > 1300 drop; }; }"
		fails "doctor: a path that loses large packets" '^FAULT: n0: small packets reach n1' "${doctor[@]}"
		"${n1[@]}" nft flush ruleset
	fi

	# The last case: the addresses do not come back.
	"${n1[@]}" ip -4 addr flush dev eth0
	tools/hosts in n0 ip -6 addr flush dev eth0
	fails "doctor: no common family" '^FAULT: n1: has only IPv6 addresses, and n0 has only IPv4' "${doctor[@]}"
}

# up makes three pseudo-hosts, and a program that starts a command on one of them as ssh would. The
# jobs of one host run on n0: nobody else uses its ports, and its name resolves.
here=()
up() {
	if ! timeout -k 5 120 tools/hosts up 3; then
		# No package could mend this: a container may not make namespaces.
		unshare -n -m -u true 2>/dev/null || excuse=${excuse:-"this system refuses new namespaces"}
		return
	fi
	here=(tools/hosts in n0)
	(umask 077; od -An -tx1 -N16 /dev/urandom | tr -d ' ' >"$work/secret")
	# Its arguments are the variables of rank $r, and the program, bin/hello if there is none.
	cat >"$work/ranks" <<END
#!/usr/bin/env bash
for r in 0 1; do
	eval "env TUTTI_SECRET_FILE='$work/secret' \$1 tools/hosts in n\$((r + 1)) \${2:-bin/hello}" &
	pids+=(\$!)
done
wait "\${pids[0]}" && wait "\${pids[1]}"
END
	# COMMAND... runs twice at once, with a directory of its own in place of OUTDIR.
	cat >"$work/twice" <<END
#!/usr/bin/env bash
"\${@//OUTDIR/$work/digits.1}" &
"\${@//OUTDIR/$work/digits.2}" && wait "\$!"
END
	cat >"$work/remote" <<END
#!/usr/bin/env bash
# OPTIONS HOST COMMAND..., with a login's few variables.
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec env -i PATH="\$PATH" HOME="\$HOME" HOSTS_LAB="$HOSTS_LAB" "$PWD/tools/hosts" in "\$host" sh -c "\$*"
END
	chmod +x "$work/remote" "$work/ranks" "$work/twice"
}

digits_line='all [24] ranks hold identical parameters'
# Four ranks on two hosts take about 0.2 s per epoch on an idle machine.
digits=(-epochs 3 -out "$work/digits")
# Its ranks end without Close.
cat >"$work/leave.go" <<END
package main

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
)

func main() {
	c, err := comm.Init(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println("rank", c.Rank(), "of", c.Size(), "ends")
}
END
${GO:-go} build -o "$work/leave" "$work/leave.go"
${GO:-go} build -tags etcd -o "$work/digits-etcd" ./examples/digits
install_packages
up
# The last cases of doctor remove addresses.
all=
groups=()
for arg; do
	if [ "$arg" = all ]; then all=all; else groups+=("$arg"); fi
done
[ "${#groups[@]}" -gt 0 ] || groups=(install hydra tuttirun openmpi slurm env etcd ssh agent elastic tree ipv6 doctor)
for group in "${groups[@]}"; do "${group}_cases"; done
echo "$ran ran, ${#skipped[@]} skipped: ${skipped[*]-}"
if [ "${#skipped[@]}" -gt 0 ] && [ -z "$excuse" ]; then
	echo "FAILED: this is root, and apt works: no case may be skipped"
	exit 1
fi
