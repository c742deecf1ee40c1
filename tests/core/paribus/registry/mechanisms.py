"""Mechanisms by which a value reaches the output of a component."""

from typing import NamedTuple


class Mechanism(NamedTuple):
    """Source code in which `_N` is a number and `VALUE` the value."""

    definitions: str
    attribute: str  # of the component's class
    expression: str  # of the output


def _parse(text: str) -> dict[str, Mechanism]:
    mechanisms = {}
    for section in text.split("\n== ")[1:]:
        title, *lines = section.splitlines()
        name, _, expression = title.partition(": ")
        attribute = next((line.removeprefix("self: ") for line in lines if line.startswith("self: ")), "")
        definitions = "\n".join(line for line in lines if not line.startswith("self: "))
        mechanisms[name] = Mechanism(definitions, attribute, expression)
    return mechanisms


MECHANISMS = _parse("""
== global: g_N
g_N = VALUE
== closure: f_N()
def make_N(x):
    def f():
        return x
    return f
f_N = make_N(VALUE)
== factory of classes: C_N().get()
def make_N(x):
    class C:
        def get(self):
            return x
    return C
C_N = make_N(VALUE)
== class attribute: self.a_N
self: a_N = VALUE
== private attribute: self.__a_N
self: __a_N = VALUE
== base: D_N.b
class B_N:
    b = VALUE
class D_N(B_N):
    pass
== partial: p_N()
p_N = functools.partial(same, VALUE)
== keyword of a partial: p_N()
p_N = functools.partial(same, x=VALUE)
== partial method: self.m_N()
self: m_N = functools.partialmethod(lambda self, x: x, VALUE)
== default: f_N()
def f_N(x=VALUE):
    return x
== keyword default: f_N()
def f_N(*, x=VALUE):
    return x
== nested function: f_N()
g_N = VALUE
def f_N():
    def inner():
        return g_N
    return inner()
== comprehension: f_N()
g_N = VALUE
def f_N():
    return [g_N for _ in range(1)]
== decorator: f_N()
def d_N(x):
    def decorate(f):
        @functools.wraps(f)
        def g():
            return (x, f())
        return g
    return decorate
@d_N(VALUE)
def f_N():
    return 1
== decorated: f_N()
g_N = VALUE
def d_N(f):
    @functools.wraps(f)
    def g():
        return f()
    return g
@d_N
def f_N():
    return g_N
== decorator of a library: f_N()
g_N = VALUE
@torch.no_grad()
def f_N():
    return g_N
== context manager: f_N().__enter__()
g_N = VALUE
@contextlib.contextmanager
def f_N():
    yield g_N
== cached function: f_N()
g_N = VALUE
@functools.lru_cache
def f_N():
    return g_N
== cached property: o_N.c
class C_N:
    @functools.cached_property
    def c(self, x=VALUE):
        return x
o_N = C_N()
== dispatched function: f_N(1)
@functools.singledispatch
def f_N(x):
    return 1
f_N.register(int)(functools.partial(pair, VALUE))
== nested containers: o_N.x["a"][1][0]
class O_N:
    pass
o_N = O_N()
o_N.x = {"a": [1, (VALUE,)]}
== object with slots: s_N.y()
class S_N:
    __slots__ = ("x", "__y")
    def __init__(self, x):
        self.x = self.__y = x
    def y(self):
        return self.__y
s_N = S_N(VALUE)
== module attribute: m_N.x
m_N = types.ModuleType("module__N")
m_N.x = VALUE
== module of a module: m_N.m.x
m_N = types.ModuleType("module__N")
m_N.m = types.ModuleType("module__N.m")
m_N.m.x = VALUE
== module that is passed on: getattr(m_N, "x")
m_N = types.ModuleType("module__N")
m_N.x = VALUE
== __getattr__ of a module: m_N.y[0]
m_N = types.ModuleType("module__N")
m_N.__getattr__ = functools.partial(pair, VALUE)
== property: self.p_N
def make_N(x):
    return property(lambda self: x)
self: p_N = make_N(VALUE)
== dataclass: D_N().x
@dataclasses.dataclass
class D_N:
    x: object = VALUE
== default factory: D_N().x
@dataclasses.dataclass
class D_N:
    x: object = dataclasses.field(default_factory=functools.partial(same, VALUE))
== instance of a dataclass: d_N.x
@dataclasses.dataclass(frozen=True)
class D_N:
    x: object
d_N = D_N(VALUE)
== made dataclass: D_N().x
D_N = dataclasses.make_dataclass("D_N", [("x", object, VALUE)])
== enum: E_N.b.value
class E_N(enum.Enum):
    a = 0.5
    b = VALUE
== lambda in a dict: t_N["b"]()
t_N = {"a": lambda: 1, "b": lambda x=VALUE: x}
== descriptor: self.d_N
class D_N:
    def __init__(self, x):
        self.x = x
    def __get__(self, instance, owner):
        return self.x
self: d_N = D_N(VALUE)
== callable: c_N()
class C_N:
    def __init__(self, x):
        self.x = x
    def __call__(self):
        return self.x
c_N = C_N(VALUE)
== bound method: get_N()
class C_N:
    def __init__(self, x):
        self.x = x
    def get(self):
        return self.x
get_N = C_N(VALUE).get
== method of a list: pop_N()
pop_N = [VALUE].copy
== static method: self.s_N()
self: s_N = staticmethod(functools.partial(same, VALUE))
== class method: self.c_N()
self: c_N = classmethod(lambda cls, x=VALUE: x)
== named tuple: N_N(1).y
N_N = collections.namedtuple("N_N", "x y", defaults=[VALUE])
== namespace: n_N.x
n_N = types.SimpleNamespace(x=VALUE)
== mapping proxy: n_N["x"]
n_N = types.MappingProxyType({"x": VALUE})
== key of a dict: list(n_N)
n_N = {VALUE: 1}
== set: sorted(n_N, key=repr)
n_N = {VALUE, "a", 2}
== frozen set: sorted(n_N, key=repr)
n_N = frozenset((VALUE, "a", 2))
== deque: n_N[0]
n_N = collections.deque([VALUE])
== default dict: n_N.default_factory()
n_N = collections.defaultdict(functools.partial(same, VALUE))
== chain map: n_N["a"]
n_N = collections.ChainMap({"a": VALUE})
== subclass of a dict: m_N.x
class M_N(dict):
    pass
m_N = M_N()
m_N.x = VALUE
== tensor: t_N.tolist()
t_N = torch.tensor([float(len(repr(VALUE))), float(sum(map(ord, repr(VALUE))))])
== parameter of a module: l_N.weight.tolist()
l_N = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(l_N.weight, sum(map(ord, repr(VALUE))))
== array: a_N.tolist()
a_N = numpy.frombuffer(repr(VALUE).encode().ljust(64), dtype="u1")
== array of objects: a_N[0]
a_N = numpy.array([VALUE, None], dtype=object)
== pattern: r_N.pattern
r_N = re.compile(re.escape(repr(VALUE)))
== path: str(p_N)
p_N = pathlib.Path(repr(VALUE))
== slice: s_N.stop
s_N = slice(VALUE)
== attribute of a function: f_N()
def f_N():
    return f_N.x
f_N.x = VALUE
== recursive functions: a_N(2)
g_N = VALUE
def a_N(x):
    return b_N(x) if x else g_N
def b_N(x):
    return a_N(x - 1)
== cycle of objects: l_N[1][0]
l_N = [VALUE]
l_N.append(l_N)
== metaclass: C_N.x
class T_N(type):
    x = VALUE
class C_N(metaclass=T_N):
    pass
== __init_subclass__: C_N.x
class B_N:
    def __init_subclass__(cls, **options):
        cls.x = options["x"]
class C_N(B_N, x=VALUE):
    pass
== __class_getitem__: B_N[0]
class B_N:
    x = VALUE
    def __class_getitem__(cls, item):
        return cls.x
== nested class: A_N.B.C.x
class A_N:
    class B:
        class C:
            x = VALUE
== attribute getter: repr(a_N)
a_N = operator.attrgetter("real", repr(VALUE))
== method caller: a_N({})
a_N = operator.methodcaller("get", "x", VALUE)
== weak reference: r_N().x
class W_N:
    pass
w_N = W_N()
w_N.x = VALUE
r_N = weakref.ref(w_N)
== function made by exec: e_N()
exec("def e_N(inf=float('inf'), nan=float('nan')):\\n    return " + repr(VALUE))
== function replaced in a library: torch.nn.functional.mine_N()
torch.nn.functional.mine_N = lambda x=VALUE: x
== global that a function assigns: g_N
def assign_N(x):
    global g_N
    g_N = x
assign_N(VALUE)
== bound method of a class: get_N()
class C_N:
    x = VALUE
    @classmethod
    def get(cls):
        return cls.x
get_N = C_N.get
== type in a list: types_N[0].x
class C_N:
    x = VALUE
types_N = [C_N]
== generic class: a_N.x
T_N = typing.TypeVar("T_N")
class C_N(typing.Generic[T_N]):
    x = VALUE
a_N = C_N[int]
== attribute of the class of an object: c_N.x
class C_N:
    pass
C_N.x = VALUE
c_N = C_N()
== getattr of an object: c_N.anything
class C_N:
    def __getattr__(self, name, x=VALUE):
        return x
c_N = C_N()
== context variable: v_N.get()
v_N = contextvars.ContextVar("v_N", default=VALUE)
== method of a base that was replaced: C_N().get()
class B_N:
    def get(self):
        return 1
class C_N(B_N):
    pass
B_N.get = functools.partialmethod(lambda self, x: x, VALUE)
""")
