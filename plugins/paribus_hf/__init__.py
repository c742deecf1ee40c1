"""Model families of the `transformers` library: one file a family, and one line here. The library is not imported."""

from collections.abc import Mapping

from paribus import Family, hookimpl, registered
from paribus_hf.albert import Albert
from paribus_hf.bart import Bart
from paribus_hf.bert import Bert
from paribus_hf.big_bird import BigBird
from paribus_hf.ctrl import Ctrl
from paribus_hf.deberta import Deberta
from paribus_hf.deberta_v2 import DebertaV2
from paribus_hf.distilbert import DistilBert
from paribus_hf.electra import Electra
from paribus_hf.flaubert import Flaubert
from paribus_hf.gpt2 import Gpt2
from paribus_hf.gpt_neo import GptNeo
from paribus_hf.gptj import GptJ
from paribus_hf.llama import Llama
from paribus_hf.m2m_100 import M2M100
from paribus_hf.mistral import Mistral
from paribus_hf.modernbert import ModernBert
from paribus_hf.openai_gpt import OpenAIGpt
from paribus_hf.qwen2 import Qwen2
from paribus_hf.qwen3 import Qwen3
from paribus_hf.roberta import Roberta
from paribus_hf.t5 import T5
from paribus_hf.vit import Vit
from paribus_hf.xlm import Xlm
from paribus_hf.xlm_roberta import XlmRoberta
from paribus_hf.xlnet import XlNet


@hookimpl
def families() -> Mapping[str, type[Family]]:
    return {family.kind: family for family in registered(globals(), Family).values()}
