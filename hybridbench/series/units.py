"""Find what a column measures from its name and values: a unit, a counter, or nothing to judge.

Tools write units into headings ("RSS (KB)", "mem_mib", "process_resident_memory_bytes").  A unit
that the heading lacks is not guessed; rates are then in the column's own unit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import Check, Kind, Unit, spec_of

_KIB, _MIB = 2.0**10, 2.0**20

# For units that a person wrote: decimal and binary prefixes have their exact meaning.  Kubernetes
# omits the B; PRTG, PCP and Windows write kbyte for a power of 2; the French write octets.
_ENDS = {1000.0: ("b", "o"), 1024.0: ("ib", "i", "byte", "bytes")}
BYTE_FACTORS: Mapping[str, float] = {
    **{f"{prefix}{end}": base**power for power, prefix in enumerate("kmgt", 1)
       for base, ends in _ENDS.items() for end in ends},
    **dict.fromkeys(("b", "byte", "bytes", "by", "o", "octets"), 1.0),
    # OpenTelemetry; MLflow.
    "kiby": _KIB, "miby": _MIB,
    **{f"{prefix}byte{s}": 1000.0**power for power, prefix in enumerate(("kilo", "mega", "giga"), 1)
       for s in ("", "s")},
    "page": 4096.0, "pages": 4096.0,
}  # fmt: skip
# Units as monitoring services name them, mapped to the form used in column headings.
SERVICE_UNITS: Mapping[str, str] = {
    "bytes": "bytes", "byte": "bytes", "by": "bytes", "kilobytes": "kB", "megabytes": "MB",
    "gigabytes": "GB", "kibibyte": "KiB", "mebibyte": "MiB", "gibibyte": "GiB", "percent": "%",
    "seconds": "s", "milliseconds": "ms", "second": "s", "millisecond": "ms",
}  # fmt: skip
# Units that tools print without decimals.
WHOLE_UNITS = frozenset({"b", "byte", "bytes", "kb", "kib", "ki"})
# Columns that identify a process; a new number is a new process.
PROCESS_ID = re.compile(
    r"(.*[.\\])?(p?pid|process_start_time_seconds|process[_ ]?id|id process)", re.I
)
# How often or when a process restarted, and how long a process or machine has been up.
RESTARTED = re.compile(r"(.*[^a-z])?restart(s|[_ ]?(count|time))([^a-z].*)?", re.I)
UPTIME = re.compile(r".*(uptime|(?<![a-z])up_time).*", re.I)
# The kernel and its readers (ps, /proc, psutil scripts) write kB for KiB.
_KERNEL_KB = "kb"
_MEMORY = re.compile(
    r"rss|pss|uss|resident|virt|vsz|vms|vmsize|memory|(\b|_)mem(?!ber)|mem\b|heap|swap|anon|percpu|"
    r"working_?set|footprint|\breal\b|\bres\b",
    re.I,
)
_IN_BRACKETS = re.compile(r"[(\[]\s*([A-Za-z/1]+|%)\s*[)\]]\s*$")
# Azure and Grafana append the statistic, such as the average of an interval.
_STATISTICS = r"(?:avg|average|mean|min|max|minimum|maximum|sum|total|last|current)"
# .NET appends tags: (By)[gc.heap.generation=gen2].
_STATISTIC = re.compile(rf"\s*([(\[]{_STATISTICS}[)\]]|(?<=\))\[[\w.]+=.*\]|__M(IN|AX))\s*$", re.I)
# SQL, InfluxDB and Splunk write avg(rss_mb).
_OF_STATISTIC = re.compile(rf"{_STATISTICS}\(\"?([^()]+?)\"?\)", re.I)
_SUFFIX = re.compile(
    r"(?:^|[_.:\s-])(bytes|[kmg]ib|[kmg]b|[kmg]bytes?|(?:kilo|mega|giga)bytes?|ms|milliseconds|"
    r"seconds)$",
    re.I,
)
# PyTorch's allocated_bytes.all.current, crictl's workingSetBytes.value.
_BYTES_OF = re.compile(r"(?:^|[_\s-]|[a-z](?=B))([Bb]ytes)(?=\.)")
_CAMEL = re.compile(r"[a-z](KiB|MiB|GiB|KB|MB|GB|Bytes)$")
_COUNTER = re.compile(
    # Of what, it must say: a count of widgets may be those that there are.
    r"[_ ](total|sum)$|[.](sum|avgcount)$|"
    r"(total|time|seconds|_[mun]s|length|size|latency|duration|bytes|batch|event|"
    r"message|job|query|calls?|req(uest)?s?|tokens?|steps?|iterations?|op(eration)?s?|finish\w*|"
    r"success\w*)[_ ]count$|^(num_|n_|total_)?(requests|reqs|tokens|finishes|finished|completed|"
    r"iter(ation)?s?|steps?|operations|ops|calls)(_(done|served|finished|completed|processed))?$|"
    r"(prompt|output|generation|generated|input)_tokens$|(^|[_./ ])(global[_ ]?)?step$",
    re.I,
)
# Words for things that a program holds, and for how much or how many it holds of them.
_THINGS = (
    r"threads?|(go|co)?routines?|fibers?|tasks?|fds?|files?|handles?|descriptors?|objects?|nodes?|"
    r"listeners?|sock(et)?s?|conn(ection)?s?|clients?|sessions?|users?|channels?|streams?|"
    r"subscri\w+|slots?|blocks?|pages?|keys?|entry|entries|items?|elements?|caches?|pool\w*|"
    r"buffers?|instances?|proc(ess|esse)?s?|children|zombies?|containers?|timers?|watch(er|e)?s?|"
    r"contexts?|tensors?|graphs?|locks?|(weak)?refs?|references?|prepared_statements?|documents|states?|leases?|"
    r"series|tables?|maps?|vmas?|regions?|segments?|chunks?|modules|classes|strings|closures|arenas?"
)
_HELD = re.compile(
    rf"(^|[^a-z])(?!user$)({_THINGS}|size|len|length|depth|level|pending|active|open|live|alive|held|"
    r"leaked|in_?use|idle|busy|online|used|usage|alloc\w*|cached|queue\w*|backlog|waiting|running|"
    r"blocked|estab\w*|stack|value|current$|free|left|avail(able)?|uncollectable)([^a-z]|$)",
    re.I,
)
# Current amounts, not work done, although their names end like a counter's.
_NO_COUNTER = re.compile(
    rf"(^|[^a-z])((rss|pss|uss|mem|memory|heap|vram|used|usage|in_use)_total|({_THINGS})[_ ]count|"
    rf"(active|open|live|current|pending)[_ ]({_THINGS}|requests?)[_ ]total)$",
    re.I,
)
_SHOWN = re.compile(
    # A column without a name is the pandas index.
    r"^(|unnamed: ?\d+|p?p?id|pgid|tid|uid|gid|itemid|ns|interval|port|%mem|"
    r"(.*[.])?attempt|epoch|timestamp|row|index|line|seq(uence)?|nproc|result|table|share|process_start_time_seconds|seed|rank|ni|pri?|psr|pstate|count|"
    # How long a pod has existed: 5m; MySQL's cache, whose size is a setting.
    r"age|page[_ ]life[_ ]expectancy|(.*_)?innodb_buffer_pool_\w+|"
    # .NET counts some per interval: (By / 1 sec).
    r"(min|maj)flt/s|.* / \d+ sec\W.*|(net|block)[ _]?i/?o|(read|write)[_ ]bytes|"
    r"%(usr|system|guest|wait)|(.*\\)?% \w+ time|tty|stat|start|job_?id|"
    # jstat's young spaces and classes (a leak fills OU) and its capacities; machine sizes.
    r"(s[01]|e|o|m|ccs)c|(s[01]|e|m|ccs)u|(mem|swap)total|hugepages?.*|directmap.*|commitlimit|"
    r"vmalloc(total|chunk)|(kb)?commit(ted_as)?|%?commit|(.*\.)?(gccpufraction|nextgc)|"
    # How busy a machine is: Linux, node_exporter, Telegraf, sar.
    r"((node|system)[_.])?(load[_ ]?(avg|average|(avg[_ .]?|average[_ .]?|[.])?(1|5|15)(m|min)?)|"
    r"procs_(running|blocked))|ldavg-\d+|runq-sz|"
    # How busy a GPU is, and what its sensors measure.
    r"(.*[^a-z])?gpu[ _]?(use|util|utili[sz]ation)|.*[.]utilization[.](gpu|memory)|gputl|"
    r"(.*[^a-z])?(temperature([^a-z].*)?|temp([_ ](c|f|celsius|edge|junction|hotspot|gpu))?|"
    r"power([_ .](w|mw|watts|draw|usage))?|watts|fan([_ .](speed|rpm)([^a-z].*)?)?|rpm|mhz)|"
    # nvidia-smi columns other than memory.
    r"fbttl|memory\.(total|reserved)|(utilization|temperature|clocks|power|fan|pcie|ecc)\..*)$|"
    r"(^|[^a-z])limits?([_ .](in_)?(bytes|[kmg]i?b))?$|\blimit\b|"
    r"^memory[._]?(swap[._]?)?(max|high|low|min|limit)$",
    re.I,
)
# Never falls in one process: Go's memstats, columns of jstat and ps, kernel counters.
_CUMULATIVE = re.compile(
    r"(.*\.)?(totalalloc|mallocs|frees|lookups|num(forced)?gc|lastgc|pausetotalns)|[yfc]gct?|gct|"
    # memory.stat and memory.events: page faults, scans and collapses; limits that were reached.
    r"(.*\.)?((total_)?pg(maj)?(fault|scan|steal|refill|(de)?activate|lazyfree|pg|promote|demote)"
    r"[a-z_]*|workingset_\w+|thp_\w+_alloc|z?swp(in|out|wb)|numa_\w+)|"
    r"(.*[._])?(failcnt|max_usage(_(in_)?bytes)?)|"
    # Elasticsearch; /proc/PID/io and cpu.stat.
    r"(.*[._])?time_in_(milli|micro|nano)s|nr_(periods|throttled|bursts)|"
    r"[rw]char|sysc[rw]|cancelled_write_bytes|(usage|user|system|throttled|burst)_usec|"
    r"memory[._]events[._:](local[._:])?(low|high|max|oom\w*)|"
    rf"{UPTIME.pattern}|gc_?(count|num)|(time|zeit)\+?|vm_?(hwm|peak)(_[kmg]i?b)?|memory[.]?peak|.*_seconds_(total|sum)|.*_total_(seconds|[mun]?s)|(non)?voluntary_ctxt_switches|cpuusagensec",
    re.I,
)
# Words for events and traffic so far: a column that has one and never falls is not a level.
_SO_FAR = re.compile(
    r"(^|[_ .:/-])(hits?|miss(es)?|errors?|exceptions?|failures?|evictions?|retr(y|ies)|p?faults|"
    r"restarts|limited|throttled|"
    r"collections|preemptions|switches|forks|packets|reads?|writes?|sent|recv|received|transmitted|"
    r"read|written|rx|tx|served|generated|rendered|processed|handled|executed|emitted|"
    r"ticks|jiffies|published|consumed|ingested|delivered|acked|invocations|runs|completed|finished|failed|"
    r"\w+_since_\w+|(total_)?allocated[_ ]objects|objects[_ ]allocated|"
    r"dropped|evicted|aborted|(lazy)?free[ds]|gc[-_]cycles|reclaimed|changes|expired|inserted|updated|deleted|exported|logged|seen|done|"
    r"preempted|rejected|refused|cancelled|timeouts?|(user|sys|system|cpu|gc|pause)[_ ]time|energy|"
    r"accepts|accepted|started|created|closed|destroyed|total[_ ](connections|pauses?)|"
    r"heap[._]total_allocated|gc[._]memory[._](allocated|promoted)|(down|up)load(ed)?|transfer(red)?|"
    r"(net(work)?|disk|block|swapped|paged)[_ ](i(n(put)?)?|o(ut(put)?)?)|joules)"
    r"([_ .:/-](bytes|[kmg]i?b|count|total|num|size|in|documents|objects|pages|keys|rows|lines|"
    r"full|tasks|jobs|req(uest)?s|messages|[mun]s|seconds|(in)?voluntary|conn(ection)?s?))*"
    # WiredTiger: bytes read into cache.
    r"([_ ]?[(\[]\w+[)\]]|[_ ](into|from|by)[_ ].*)?$|^cum(ulative)?_|"
    r"(^(if_)?|[._]op_)(in|out)_(bytes|octets|msgs|packets)$|(bytes|octets|msgs|packets)[_.](in|out)$|"
    # The kernel, as it names them and as node_exporter does; Chrome's Performance.getMetrics.
    r"^oom(_(group_)?kill)?$|^node_(?!netstat_Tcp_Curr_Estab|netstat_Ip_)(netstat|vmstat)_|"
    r"^(layout|recalc_style|script|task)_(count|duration)$",
    re.I,
)
# Unless another word says that they are still to come.
_TO_COME = re.compile(r"pending|queued|outstanding|in_?flight|waiting|buffered|unack", re.I)
# The same words as label values, as in Ray's tasks and actors.
_SO_FAR_LABEL = re.compile(r'="(finished|failed|dead|completed|succeeded|done)"', re.I)
# Events or a backlog of them, and what a program writes to a disk.
_MAY_COUNT = re.compile(
    # Unless another word says that this is still there.
    r"(?!.*(pending|active|open(?!ed)|running|queue|live|held|waiting|buffer|ready|unack))"
    # A total may be of all time; a column without a heading may be anything.
    r"(number|total[_ ](?!.*(alloc|used|size|byte|mem|heap|free|rss)).*|(.*[_ .:/-])?"
    r"(total_alloc|alloc(ation)?s|registered|views|frames|messages|lines|events|commits|queries|calls|jobs|samples|spans|records|commands|"
    r"transactions|batches|opened|offset|cost|usd|energy|disk|fs|filesystem|inodes?|store[.]size|"
    r"(log|wal|db|redo)[_ ](total_)?(size|bytes|lines|[kmg]i?b))([_ .{(].*)?|"
    # Of tasks or pages, for example, a program may count those that it has handled.
    r"(?!(.*[^a-z])?(thread|fd|handle|object|connection|socket|process|slot|session|client|listener)"
    r"s?[_ .]count$).*[_ .]count)",
    re.I,
)
# Counters whose names mean that only beside a name of their program, such as memory.events or a
# status of MySQL, which prints counters except for a few.
_OF_PROGRAM = (
    ("oom_kill", "low|high|max|sock_throttled"),
    ("Total Accesses", r"Total \w+"),
    ("scur", r"\w+tot|[bd](in|out)|[dew](re|co|ses|ch)\w+|hrsp_\w+|\w+_abrt|chk\w+|connect|reuse"),
    ("kvCacheStats.allocNewBlocks", r"kvCacheStats[.](alloc\w+|reused\w+|missed\w+|iter\w+)"),
    ("num_alloc_retries", "num_device_(alloc|free)"),
    ("xact_commit", r"(xact|blks|tup|temp|conflict|deadlock|session|checksum)\w*|\w+_time"),
    ("checkpoints_timed", r"(checkpoint|buffers|maxwritten)_?\w+"),
    ("wal_records", r"wal_\w+"),
    ("n_live_tup", r"(n|seq|idx)_\w+|(auto)?(vacuum|analyze)_count"),
    ("Threads_connected",
     r"(?!Threads_(cached|connected|running)|\w*_pending_|(Innodb_num_)?open_|Prepared_stmt_count|"
     r"Innodb_(row_lock_current|mem|history|checkpoint|ibuf)|"
     r"Memory_used|Key_blocks_|Qcache_(free|queries|total)|Max_used)[A-Z][a-z]+(_\w+)?"),
)  # fmt: skip
_CAMEL_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Caches of a machine or a cgroup: the kernel frees them when a program needs the memory.
_CACHE = re.compile(
    r"(swap_?)?cached|(page|file|fs|os)_?cache(_(size|used))?|standby_cache\w*|buff/cache|swpcad|"
    r"(in)?active[(_]file\)?|file_(mapped|dirty|writeback|thp)|(slab_|[ks])?recl(aimable)?|"
    r"node_zfs_arc_size",
    re.I,
)
# The page cache fills the free memory of a machine, whatever its programs do; a GPU has none.
_FREE = re.compile(
    r"(?=.*free)(?=.*(mem|ram|swa?p)|(kb)?free([_ ](bytes|[kmg]i?b))?$)"
    r"((kb|free|mem(ory)?|ram|swap|swp|phys(ical)?|os|host|node|machine|system|windows|total|size|"
    r"bytes|[kmg]i?b)[_ ]*)+",
    re.I,
)
_OF_DEVICE = re.compile("gpu|cuda|nvidia|vram|device", re.I)
# A cache of a program grows to a limit that its memory does not show: WiredTiger, Windows.
_OWN_CACHE = re.compile(
    r"(?!.*(rss|resident|anon|heap|working))(.*[^a-z])?cached?([^a-z].*)?", re.I
)
# The same as a label or a parameter: OpenTelemetry, Google Cloud, Zabbix.
_CACHE_LABEL = re.compile(r'(="|\[)(evictable|cached|buffered|buffers|slab_reclaimable)["\]]')
# These mean page cache only beside other columns of a machine or cgroup: a program may have a cache
# of its own.
_CACHE_BESIDE = re.compile(
    # `kernel` of a cgroup includes the slabs that can be reclaimed.
    r"file|buff?(er(s|ed))?|cache?|(in)?act(ive)?|mapped(_file)?|dirty|writeback(tmp)?|slab|kernel",
    re.I,
)
# The same names, as sysstat and the exporters of machines and containers write them.
_OF_MACHINE = re.compile(
    r"((?P<prefix>kb|(node|container|windows)_memory_)?(total_|mem(ory)?[_-])?)"
    r"(?P<word>.*?)(_(bytes|[kmg]i?b))?",
    re.I,
)
_OF_KERNEL = re.compile(
    r"(total_|mem(ory)?[_-])?(rss|working_set|cach(ed)?|buff(ers|ered)?|slab)|mem_?(free|available)|"
    r"(anon|(total_)?(in)?active_(anon|file))(_bytes)?",
    re.I,
)
# Garbage-collected heaps: OU of jstat, heapUsed of V8, HeapAlloc of Go, pools of the JVM.
_COLLECTED = re.compile(
    r"(?<!non)(?<!non[_-])heap|old[_ -]?gen|tenured|eden|^[OE]U$|"
    r"(^|[_.])(memstats[_.])?alloc(_bytes)?$",
    re.I,
)
# Micrometer and JMX label the memory of a JVM: id="G1 Eden Space".
_YOUNG_LABEL = re.compile(r'="[^"]*(eden|survivor) space', re.I)
FREE_OF_CACHE = "anon of memory.stat, or RSS of the process"
# The most so far, which never falls; a program's own VmHWM is among the cumulative ones.
_PEAK = re.compile(r"(^|[^a-z])(hwm|peak|max_?rss|high_?water(_?mark)?)([^a-z]|$)", re.I)
_RESIDENT = re.compile(r"rss|resident|[pu]ss|working_?set|footprint", re.I)
# Totals that include the page cache, used only if no memory column of the file excludes it.
_WITH_CACHE = re.compile(
    r"(.*[._])?cgroup([._]\w*)?[._](current|usage|used)(_(in_)?bytes)?|"
    r"(.*\.)?memory\.(current|usage_in_bytes|usagebytes)|memorycurrent|container_memory_usage_bytes|"
    r"(kb|%|.*\.)memused(-percent)?|(\w+:)?system\.mem(ory)?\.used(\.\w+|\{.*\})?|\[mem\]used|memory_usage_in_bytes|memory_stats\.usage",
    re.I,
)
# Requests in flight: vllm:num_requests_running, sglang:num_queue_reqs, tgi_queue_size,
# llamacpp:requests_processing.
_REQUESTS = r"(requests?|reqs?|seqs?|sequences?)"
_IN_FLIGHT = (
    r"(running|waiting|queued?|swapped|pending|active|in_?flight|concurrent|processing|deferred)"
)
_LOAD = re.compile(
    rf"(^|[:_. ])({_REQUESTS}[_ ]{_IN_FLIGHT}|{_IN_FLIGHT}[_ ]{_REQUESTS}([_ ]count)?|in_?flight|"
    r"(tgi|lightllm)_(queue|batch_current)_size)$",
    re.I,
)
_CPU = re.compile(r"^(%?cpu.*|.*cpu|.*cpu[ _(%./-].*)$", re.I)
# Remaining amounts: less is worse, whatever holds the rest.
_LEFT = r"free(able)?|avail(able)?|usable|unused|remaining|headroom|verfügbare?|disponibles?"
# Not free_used_mb, a column of the command free.
_IS_LEFT = re.compile(rf"(^|[_.\s\\-]|kb|mem)({_LEFT})(?!_used)([_.\s(-]|$)|^FBFRE$", re.I)
_SPEED = re.compile(
    r"throughput|per_s(ec|econd)?$|tokens_seconds$|/s(ec)?\b|qps|rps|tps|req_s|tok_s|hit_?rat(e|io)|goodput",
    re.I,
)
_DELAY = re.compile(r"latency|ttft|itl|tpot|_ms\b|\(ms\)|duration|delay", re.I)
# Units that a tool does not print, known from the other names beside it; all patterns must match.
_TOOL = r"(RSS|VSZ|VIRT|RES|SHR|USS|PSS|Swap|Kbytes|Dirty)"
_USUAL: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("OU|EU", "FGC|YGC|GCT|OC"), r"(S[01]|E|O|M|CCS)[UC]", "KiB"),
    (("heapUsed", "heapTotal"), r"rss|heapUsed|heapTotal|external|arrayBuffers", "bytes"),
    (("HeapAlloc", "HeapSys|NumGC|Sys|Alloc"),
     r"((Heap|Stack|MSpan|MCache|BuckHash|GC|Other)?(Alloc|Sys|Idle|Inuse|Released)|NextGC)",
     "bytes"),
    (("working_set", "usage"), "usage|max_usage|cache|rss|swap|working_set|mapped_file", "bytes"),
    ((r"\[MEM\]Cached",), r"\[MEM\]\w+", "KiB"),
    (("buff", "cach"), "used|free|buff|cach", "bytes"),  # dstat
    ((r".*\\Process\(.*",), r".*\\(Working Set|Virtual Bytes|Page File Bytes).*", "bytes"),
    (("WorkingSet(64|Size)|WS",), r"WorkingSet\w*|\w+MemorySize64|WS|PM|VM", "bytes"),  # Windows
    (("rss", "vms"), r"rss|vms|uss|pss|shared|text|data|lib|swap", "bytes"),  # psutil
    (("used_memory(_rss)?",),
     r"used_memory(_(rss|peak|dataset|overhead|startup|lua|scripts))?|"
     r"allocator_(allocated|active|resident)", "bytes"),
    (("anon|file|total_rss",),
     r"(total_)?(anon|file|rss|cache|kernel\w*|pagetables|percpu|sock|shmem|vmalloc|slab\w*|"
     r"swap\w*|(in)?active_\w+|unevictable|mapped_file|file_\w+|anon_thp|zswap\w*)", "bytes"),
    ((r"Memory(Current|SwapCurrent)",), r"Memory\w*", "bytes"),
    ((r"container_memory_\w+",), r"container_memory_\w+", "bytes"),
    ((r"DCGM_FI_DEV_FB_\w+|FBUSD",), r"DCGM_FI_DEV_FB_\w+|FBUSD|FBFRE|FBTTL", "MiB"),
    (("used", "total", "gpu"), "used|total", "MiB"),  # gpustat: memory.used, utilization.gpu
    (("gpu_memory_usage", "username"), "gpu_memory_usage", "MiB"),
    ((r"[cg]puMemUsage",), r"\w+MemUsage", "bytes"),  # TensorRT-LLM
    (("resident", "virtual", "bits"), "resident|virtual", "MiB"),  # MongoDB
    (("(?i:total_vram|vram_total)",),
     "(?i:(total|used|free)_(visible_)?(vram|gtt)|vram_(used|total|free))", "MiB"),
)  # fmt: skip
# psrecord and amd-smi divide by 2^20 and write MB.
_BINARY_MB = re.compile(r"(real|virtual|uss|(total|used|free)_(visible_)?(vram|gtt)) \(mb\)", re.I)
_SYSSTAT_KIB = re.compile(r"kb[a-z]+")


class Role(StrEnum):
    """How a column is used."""

    LEVEL = "level"  # goes up and down: judged
    COUNTER = "counter"  # work done so far: growth is measured against it
    LOAD = "load"  # requests in flight: they move the levels; judged if that can be decided
    CUMULATIVE = "cumulative"  # falls only at a restart; not judged
    CACHE = "cache"  # a cache, or the free memory that caches fill: shown
    WITH_CACHE = "with cache"  # a total that includes cache: judged if there is nothing better
    SHOWN = "shown"  # known and not judged (processor share, a limit, an id)


@dataclass(frozen=True)
class Meaning:
    """What a column measures.

    ``factor`` converts its values to ``unit``.  ``known`` is False for an unknown unit; then
    ``unit`` is a count of whatever the column counts.
    """

    role: Role
    unit: Unit
    factor: float = 1.0
    known: bool = True
    higher_is_worse: bool = True
    note: str = ""
    is_delay: bool = False
    # Events, or data on a disk: not a leak if it only grows, nor if its free part only falls.
    may_count: bool = False

    @property
    def decays(self) -> bool:
        """Whether growth means decay (slower, less) rather than something held."""
        speeds = (Unit.PER_SECOND, Unit.MILLISECONDS, Unit.SECONDS, Unit.RATIO)
        return self.is_delay or self.unit in speeds


UNITS: Mapping[str, Meaning] = {
    **{word: Meaning(Role.LEVEL, Unit.BYTES, factor) for word, factor in BYTE_FACTORS.items()},
    "count": Meaning(Role.LEVEL, Unit.COUNT),
    "slots": Meaning(Role.LEVEL, Unit.SLOTS),
    **dict.fromkeys(("s", "seconds"), Meaning(Role.LEVEL, Unit.SECONDS)),
    **dict.fromkeys(("ms", "milliseconds"), Meaning(Role.LEVEL, Unit.MILLISECONDS)),
    "1/s": Meaning(Role.LEVEL, Unit.PER_SECOND),
    "ratio": Meaning(Role.LEVEL, Unit.RATIO),
}


def parse_unit(text: str) -> Meaning:
    """Parse a unit that a person wrote: bytes, KiB, MB, pages, count, slots, s, ms, 1/s, ratio.

    Raises:
        ValueError: the message gives the text and the accepted units.
    """
    found = UNITS.get(text.strip().lower())
    if found is None:
        raise ValueError(
            f"{text!r} is not a unit; write bytes, KiB, MiB, GiB, kB, MB, GB, pages, count, slots, "
            "s, ms, 1/s or ratio"
        )
    return found


def meaning_of(name: str, beside: Sequence[str] = ()) -> Meaning:
    """Find what column ``name`` measures, from its name and those ``beside`` it."""
    if _LOAD.search(bare_name(name)):
        return Meaning(Role.LOAD, Unit.COUNT)
    spec = spec_of(name)
    if spec is not None:
        role = Role.COUNTER if spec.kind is Kind.COUNTER else Role.LEVEL
        return Meaning(role, spec.unit, higher_is_worse=spec.higher_is_worse)
    # docker's heading: MEM USAGE / LIMIT.
    name = name.partition(" / LIMIT")[0]
    bare, level = bare_name(name) or name, _level(name)
    words = _CAMEL_WORD.sub("_", bare)
    other = Role.CUMULATIVE if _CUMULATIVE.fullmatch(bare) else _cache_role(name, level, beside)
    if other is not None:
        return replace(level, role=other, note="")
    of_processor = (_CPU.search(bare) or _CPU.search(name)) and not _MEMORY.search(words)
    # The young spaces of a JVM fill and empty all the time; a leak fills the old one.
    is_young = (bare in ("S0", "S1", "E") and "YGC" in beside) or _YOUNG_LABEL.search(name)
    is_shown = is_young or _SHOWN.search(bare) or _SHOWN.search(name)
    if of_processor or is_shown or _is_peak(words, beside):
        return Meaning(Role.SHOWN, Unit.COUNT, known=False)
    if _SPEED.search(name):
        unit = Unit.RATIO if re.search("hit_?rat", name, re.I) else Unit.PER_SECOND
        return Meaning(Role.LEVEL, unit, higher_is_worse=False)
    if _COUNTER.search(words) and not _NO_COUNTER.search(words):
        return Meaning(Role.COUNTER, Unit.COUNT)
    is_left = bool(_IS_LEFT.search(words))
    return replace(level, higher_is_worse=not is_left, may_count=bool(_MAY_COUNT.fullmatch(words)))


def _is_peak(words: str, beside: Sequence[str]) -> bool:
    """Return whether a name is the most so far, beside what a process has now."""
    others = (name for name in beside if not _PEAK.search(_CAMEL_WORD.sub("_", name)))
    return bool(_PEAK.search(words)) and any(map(_RESIDENT.search, others))


def _cache_role(name: str, level: Meaning, beside: Sequence[str]) -> Role | None:
    """Return whether ``name`` is a cache or a total that includes one; None if it is neither."""
    bare = bare_name(name) or name
    last = _last(bare)
    parts = _OF_MACHINE.fullmatch(last)
    assert parts is not None, "every part is optional"
    word = parts["word"]
    needs_kernel = _CACHE_BESIDE.fullmatch(word) or last in ("free", "usage")
    others = {_last(bare_name(other)) for other in beside} - {last} if needs_kernel else set()
    is_machine = parts["prefix"] or any(map(_OF_KERNEL.fullmatch, others))
    of_kernel = is_machine and (_CACHE_BESIDE.fullmatch(word) or last == "free")
    is_free = _FREE.fullmatch(last) and ("." not in bare or "mem" in last.lower())
    in_bytes = level.unit is Unit.BYTES or re.search(r"\bbytes\b", bare, re.I)
    if (
        of_kernel
        or (is_free and not _OF_DEVICE.search(name))
        or (in_bytes and says_cache(name))
        or any(map(_CACHE.fullmatch, (word, last, bare)))
        or _CACHE_LABEL.search(name)
    ):
        return Role.CACHE
    # cAdvisor's usage includes the cache beside it; systemd-cgtop shows memory.current.
    of_cgtop = 'Control Group="' in name or (name == "Memory" and "Control Group" in beside)
    is_total = last == "usage" and not others.isdisjoint(("cache", "working_set"))
    is_total = is_total or (bare == "Memory" and of_cgtop)
    return Role.WITH_CACHE if is_total or _WITH_CACHE.fullmatch(bare) else None


def _last(name: str) -> str:
    """Return the last part of a name, with words separated by underscores.

    JSON has memory_stats.stats.file, collectl [MEM]Cached, grep memory.stat:file, PromQL
    avg(container_memory_cache).
    """
    inner = _OF_STATISTIC.fullmatch(name)
    return _CAMEL_WORD.sub("_", re.split(r"[].:/]", name if inner is None else inner[1])[-1])


def counts_so_far(name: str, beside: Collection[str] = ()) -> bool:
    """Return whether ``name`` has a word for events or traffic so far: hits, errors, bytes_sent.

    Some words are such only ``beside`` others, which are without labels: ``allocated`` beside the
    same name with ``freed``, and the counters of single programs.
    """
    bare = unlabelled(name)
    freed = {re.sub("alloc(ated|s)(?!.*alloc)", word, bare) for word in ("freed", "frees")} - {bare}
    if not freed.isdisjoint(beside):
        return True
    words = _CAMEL_WORD.sub("_", bare_name(name) or name)
    of_program = any(one in beside and re.fullmatch(more, bare) for one, more in _OF_PROGRAM)
    so_far = _SO_FAR.search(words) and not _TO_COME.search(words)
    return of_program or bool(_SO_FAR_LABEL.search(name) or so_far)


def says_cache(name: str) -> bool:
    """Return whether ``name`` says that this amount of memory is a cache, not traffic of one."""
    return bool(_OWN_CACHE.fullmatch(_last(bare_name(name)))) and not counts_so_far(name)


def is_available(name: str) -> bool:
    """Return whether ``name`` is what a machine has available, which may or may not be cached."""
    return bool(re.search("avail|usable|verfügbar|disponible", bare_name(name), re.I))


def is_collected(name: str) -> bool:
    """Return whether ``name`` is a heap that a garbage collector empties from time to time."""
    return any(_COLLECTED.search(form) for form in (bare_name(name), name))


def is_gated(name: str) -> bool:
    """Return whether ``name`` is one of our own metrics whose trend gates a run."""
    spec = spec_of(name)
    return spec is not None and spec.check is Check.TREND


def bare_name(name: str) -> str:
    """Return ``name`` without its bracketed unit and labels: ``RSS (KB)`` becomes RSS."""
    return _IN_BRACKETS.sub("", _STATISTIC.sub("", unlabelled(name))).strip()


def is_memory(name: str) -> bool:
    """Return whether ``name`` has a word for memory."""
    return bool(_MEMORY.search(_CAMEL_WORD.sub("_", name)))


def may_be_held(name: str) -> bool:
    """Return whether ``name`` has a word for memory or for something else that a program holds.

    Of a dotted path the last part counts: connections.requests are requests.
    """
    *group, own = _CAMEL_WORD.sub("_", unlabelled(name)).split(".")
    return is_memory(name) or bool(_HELD.search(f"{group[-1]}.{own}" if own == "count" else own))


def usual_units(names: Sequence[str], *, of_tool: bool) -> Mapping[str, str]:
    """Find the usual units of columns whose names reveal the program; ``of_tool``: ps, top etc."""
    # JSON may nest them: memory_stats.stats.anon.
    bare = {name: re.split(r"[.:](?=\w+$)", unlabelled(name))[-1] for name in names}
    found: dict[str, str] = {}
    for needed, pattern, unit in _USUAL:
        if all(any(re.fullmatch(n, b) for b in bare.values()) for n in needed):
            found.update({n: unit for n, b in bare.items() if re.fullmatch(pattern, b)})
    if of_tool:
        found.update({name: "KiB" for name in names if re.fullmatch(_TOOL, name)})
    return found


def heading_unit(unit: object) -> str:
    """Return a service's unit as the end of a heading, such as `` (MiB)``; empty if unknown."""
    known = SERVICE_UNITS.get(str(unit).casefold(), "")
    return f" ({known})" if known else ""


def _level(name: str) -> Meaning:
    if _BINARY_MB.fullmatch(unlabelled(name).strip()):
        said = f"{name} is read in MiB, as psrecord and amd-smi mean it"
        return Meaning(Role.LEVEL, Unit.BYTES, _MIB, note=said)
    if _SYSSTAT_KIB.fullmatch(name):
        return Meaning(Role.LEVEL, Unit.BYTES, _KIB)
    word = unit_word(name)
    if word == _KERNEL_KB and is_memory(name):
        said = f"{name} is read in units of 1024 bytes, as ps and /proc mean it"
        return Meaning(Role.LEVEL, Unit.BYTES, _KIB, note=said)
    if word in UNITS:
        return UNITS[word]
    note = ""
    if is_memory(name) and not re.search("%|perc", name, re.I):
        note = (
            f"the unit of {name} is unknown: its rates have no unit; set it with --metric "
            f"'{name}:UNIT'"
        )
    is_delay = bool(_DELAY.search(name))
    return Meaning(Role.LEVEL, Unit.COUNT, known=False, note=note, is_delay=is_delay)


def unit_word(name: str) -> str:
    """Return the unit at the end of ``name``, in lower case; empty if there is none."""
    head = _STATISTIC.sub("", unlabelled(name))
    inner = _OF_STATISTIC.fullmatch(head)
    head = head if inner is None else inner[1]
    for pattern in (_IN_BRACKETS, _SUFFIX, _CAMEL, _BYTES_OF):
        match = pattern.search(head)
        if match is not None:
            word = match.group(1).lower()
            # Windows writes, for example, WS(K).
            return f"{word}ib" if word in ("k", "m", "g") else word
    return ""
