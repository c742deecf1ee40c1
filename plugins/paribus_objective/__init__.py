"""Training objectives: losses, their heads and their examples, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Objective, hookimpl, registered
from paribus_objective.bidirectional_language_modelling import BidirectionalLanguageModelling as bilm
from paribus_objective.block_diffusion import BlockDiffusion as block_diffusion
from paribus_objective.causal_classification import CausalClassification as classify_causal
from paribus_objective.causal_language_modelling import CausalLanguageModelling as clm
from paribus_objective.causal_multiple_choice import CausalMultipleChoice as choose_causal
from paribus_objective.classification import Classification as classify
from paribus_objective.completion import Completion as completion
from paribus_objective.control import Control as control
from paribus_objective.denoising import Denoising as denoise
from paribus_objective.detection import Detection as detection
from paribus_objective.distill_attention import DistillAttention as distill_attention
from paribus_objective.distill_hidden import DistillHidden as distill_hidden
from paribus_objective.distill_relations import DistillRelations as distill_relations
from paribus_objective.distill_scores import DistillScores as distill_scores
from paribus_objective.enhanced_mask_decoder import EnhancedMaskDecoder as emd
from paribus_objective.extraction import Extraction as extract
from paribus_objective.image_classification import ImageClassification as image_classify
from paribus_objective.masked_diffusion import MaskedDiffusion as masked_diffusion
from paribus_objective.masked_language_modelling import MaskedLanguageModelling as mlm
from paribus_objective.mixture_of_denoisers import MixtureOfDenoisers as ul2
from paribus_objective.multi_token_prediction import MultiTokenPrediction as multi_token
from paribus_objective.multiple_choice import MultipleChoice as choose
from paribus_objective.next_sentence_prediction import NextSentencePrediction as nsp
from paribus_objective.permutation_language_modelling import PermutationLanguageModelling as permutation
from paribus_objective.prefix_language_modelling import PrefixLanguageModelling as prefix_lm
from paribus_objective.regression import Regression as regress
from paribus_objective.replaced_token_detection import ReplacedTokenDetection as rtd
from paribus_objective.scheduled_sampling import ScheduledSampling as scheduled_sampling
from paribus_objective.sentence_order_prediction import SentenceOrderPrediction as sop
from paribus_objective.sequence_to_sequence import SequenceToSequence as seq2seq
from paribus_objective.span_boundary_objective import SpanBoundaryObjective as sbo
from paribus_objective.span_corruption import SpanCorruption as span_corruption
from paribus_objective.tagging import Tagging as tag
from paribus_objective.translation_language_modelling import TranslationLanguageModelling as tlm


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return registered(globals(), Objective)
