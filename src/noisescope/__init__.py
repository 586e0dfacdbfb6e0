"""noisescope: an oscilloscope for the numerics of language models.

    import noisescope as ns

    with ns.inject(model, ns.RelativeGaussian(0.05), layers=[9, 10, 11], operators=["softmax"]) as run:
        logits = model(**batch).logits
    print(run.stats)

Names are imported when they are first used, so that `import noisescope` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capturing import Capture as Capture
    from .capturing import capture as capture
    from .comparing import Comparison as Comparison
    from .comparing import Gate as Gate
    from .comparing import Vote as Vote
    from .comparing import compare as compare
    from .comparing import compare_many as compare_many
    from .comparing import validate_migration as validate_migration
    from .devices import emulate as emulate
    from .diagnosis import ActivationCapture as ActivationCapture
    from .diagnosis import diagnose as diagnose
    from .diagnosis import identify_avalanche_points as identify_avalanche_points
    from .diagnosis import map_sensitivity as map_sensitivity
    from .documented import AdaptiveAQN as AdaptiveAQN
    from .documented import ChannelOutlierDetector as ChannelOutlierDetector
    from .documented import FaultInjectionTestGenerator as FaultInjectionTestGenerator
    from .documented import IntegratedDiagnostic as IntegratedDiagnostic
    from .documented import MetricsDashboard as MetricsDashboard
    from .documented import assign_precision as assign_precision
    from .documented import capture_layer_output as capture_layer_output
    from .documented import find_critical_threshold as find_critical_threshold
    from .documented import generate_mixed_precision_config as generate_mixed_precision_config
    from .documented import operator_level_diagnosis as operator_level_diagnosis
    from .documented import plan_hardware_migration as plan_hardware_migration
    from .documented import plot_sensitivity_heatmap as plot_sensitivity_heatmap
    from .documented import sliding_window_diagnosis as sliding_window_diagnosis
    from .errors import NoisescopeError as NoisescopeError
    from .faults import FaultSimulator as FaultSimulator
    from .gate import Baseline as Baseline
    from .gate import RobustnessCheck as RobustnessCheck
    from .gate import RobustnessMonitor as RobustnessMonitor
    from .gate import check as check
    from .gate import take_baseline as take_baseline
    from .injection import Injection as Injection
    from .injection import inject as inject
    from .injection import survey as survey
    from .locating import Verdict as Verdict
    from .locating import locate as locate
    from .measure.cross_checks import correlate_layer_and_channel_sensitivity as correlate_layer_and_channel_sensitivity
    from .measure.cross_checks import validate_metric_correlations as validate_metric_correlations
    from .measure.fisher import estimate_fim_diagonal as estimate_fim_diagonal
    from .measure.hessian import compute_layer_hessian_trace as compute_layer_hessian_trace
    from .measure.hessian import estimate_hessian_trace as estimate_hessian_trace
    from .measure.metrics import compute_correlation as compute_correlation
    from .measure.metrics import compute_gradient_ratio as compute_gradient_ratio
    from .measure.metrics import compute_kl_divergence as compute_kl_divergence
    from .measure.metrics import compute_mae as compute_mae
    from .measure.metrics import compute_mape as compute_mape
    from .measure.metrics import compute_max_error as compute_max_error
    from .measure.metrics import compute_snr as compute_snr
    from .measure.metrics import compute_sparsity as compute_sparsity
    from .measure.opening import open_data as open_data
    from .noise import AbsoluteGaussian as AbsoluteGaussian
    from .noise import BitFlip as BitFlip
    from .noise import RelativeBias as RelativeBias
    from .noise import RelativeGaussian as RelativeGaussian
    from .noise import StuckAt as StuckAt
    from .noise import SystematicBias as SystematicBias
    from .noise import Uniform as Uniform
    from .noise import make_noise as make_noise
    from .noise.formats import format_noise as format_noise
    from .noise.formats import parse_format as parse_format
    from .planning import FaultTests as FaultTests
    from .planning import MigrationPlan as MigrationPlan
    from .planning import plan_fault_tests as plan_fault_tests
    from .planning import plan_migration as plan_migration
    from .planning.fixing import FixPlan as FixPlan
    from .planning.fixing import plan_fix as plan_fix
    from .planning.precision import PrecisionPlan as PrecisionPlan
    from .planning.precision import plan_precision as plan_precision
    from .quantising import map_formats as map_formats
    from .quantising import quantised as quantised
    from .report import Report as Report
    from .smoothing import Smoothed as Smoothed
    from .smoothing import smooth as smooth
    from .specs import DiagnosisSpec as DiagnosisSpec
    from .store import Journal as Journal
    from .traces import Trace as Trace
    from .traces import load_trace as load_trace
    from .traces import trace as trace
    from .traces import tracing as tracing
    from .training import AdaptiveNoise as AdaptiveNoise
    from .training import ConstantSchedule as ConstantSchedule
    from .training import CosineSchedule as CosineSchedule
    from .training import ExponentialStages as ExponentialStages
    from .training import LinearSchedule as LinearSchedule
    from .training import NoiseCallback as NoiseCallback
    from .training import NoisyTraining as NoisyTraining
    from .training import NormWeightNoise as NormWeightNoise
    from .training import OperatorNoise as OperatorNoise
    from .training import equalize_contributions as equalize_contributions
    from .training import measure_contributions as measure_contributions

__version__ = "0.1.0"

_HOMES = {
    "AbsoluteGaussian": "noise",
    "ActivationCapture": "diagnosis",
    "AdaptiveAQN": "documented",
    "AdaptiveNoise": "training",
    "Baseline": "gate",
    "BitFlip": "noise",
    "Capture": "capturing",
    "ChannelOutlierDetector": "documented",
    "Comparison": "comparing",
    "ConstantSchedule": "training",
    "CosineSchedule": "training",
    "DiagnosisSpec": "specs",
    "ExponentialStages": "training",
    "FaultInjectionTestGenerator": "documented",
    "FaultSimulator": "faults",
    "FaultTests": "planning",
    "FixPlan": "planning.fixing",
    "Gate": "comparing",
    "Injection": "injection",
    "IntegratedDiagnostic": "documented",
    "Journal": "store",
    "LinearSchedule": "training",
    "MetricsDashboard": "documented",
    "MigrationPlan": "planning",
    "NoiseCallback": "training",
    "NoisescopeError": "errors",
    "NoisyTraining": "training",
    "NormWeightNoise": "training",
    "OperatorNoise": "training",
    "PrecisionPlan": "planning.precision",
    "RelativeBias": "noise",
    "RelativeGaussian": "noise",
    "Report": "report",
    "RobustnessCheck": "gate",
    "RobustnessMonitor": "gate",
    "Smoothed": "smoothing",
    "StuckAt": "noise",
    "SystematicBias": "noise",
    "Trace": "traces",
    "Uniform": "noise",
    "Verdict": "locating",
    "Vote": "comparing",
    "assign_precision": "documented",
    "capture": "capturing",
    "capture_layer_output": "documented",
    "check": "gate",
    "compare": "comparing",
    "compare_many": "comparing",
    "compute_correlation": "measure.metrics",
    "compute_gradient_ratio": "measure.metrics",
    "compute_kl_divergence": "measure.metrics",
    "compute_layer_hessian_trace": "measure.hessian",
    "compute_mae": "measure.metrics",
    "compute_mape": "measure.metrics",
    "compute_max_error": "measure.metrics",
    "compute_snr": "measure.metrics",
    "compute_sparsity": "measure.metrics",
    "correlate_layer_and_channel_sensitivity": "measure.cross_checks",
    "diagnose": "diagnosis",
    "emulate": "devices",
    "equalize_contributions": "training",
    "estimate_fim_diagonal": "measure.fisher",
    "estimate_hessian_trace": "measure.hessian",
    "find_critical_threshold": "documented",
    "format_noise": "noise.formats",
    "generate_mixed_precision_config": "documented",
    "identify_avalanche_points": "diagnosis",
    "inject": "injection",
    "load_trace": "traces",
    "locate": "locating",
    "make_noise": "noise",
    "map_formats": "quantising",
    "map_sensitivity": "diagnosis",
    "measure_contributions": "training",
    "open_data": "measure.opening",
    "operator_level_diagnosis": "documented",
    "parse_format": "noise.formats",
    "plan_fault_tests": "planning",
    "plan_fix": "planning.fixing",
    "plan_hardware_migration": "documented",
    "plan_migration": "planning",
    "plan_precision": "planning.precision",
    "plot_sensitivity_heatmap": "documented",
    "quantised": "quantising",
    "sliding_window_diagnosis": "documented",
    "smooth": "smoothing",
    "survey": "injection",
    "take_baseline": "gate",
    "trace": "traces",
    "tracing": "traces",
    "validate_metric_correlations": "measure.cross_checks",
    "validate_migration": "comparing",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - one list of names, kept beside where each lives


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
