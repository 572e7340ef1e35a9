from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq as vilco_mq
from avalanche_vilco.benchmarks.vilco_mq.models import vilco_mq_base as vilco_mq_base
from avalanche_vilco.benchmarks.vilco_mq.models import vilco_mq_tiny as vilco_mq_tiny
from avalanche_vilco.benchmarks.vilco_nlq.generator import vilco_nlq as vilco_nlq
from avalanche_vilco.benchmarks.vilco_nlq.models import vilco_nlq_base as vilco_nlq_base
from avalanche_vilco.benchmarks.vilco_nlq.models import vilco_nlq_tiny as vilco_nlq_tiny
from avalanche_vilco.benchmarks.vilco_vq.generator import vilco_vq as vilco_vq
from avalanche_vilco.benchmarks.vilco_vq.models import vilco_vq_base as vilco_vq_base
from avalanche_vilco.benchmarks.vilco_vq.models import vilco_vq_tiny as vilco_vq_tiny
from avalanche_vilco.experiments.predict import predict as predict
from avalanche_vilco.experiments.run import run as run
from avalanche_vilco.experiments.score import score as score
from avalanche_vilco.models.losses import MomentLoss as MomentLoss
from avalanche_vilco.models.visual_losses import VisualQueryLoss as VisualQueryLoss
from avalanche_vilco.training.plugins.vilco import ViLCoPlugin as ViLCoPlugin

__version__: str
