"""The public names of ekc.governor and where each is."""

from ekc.governor.governor import Governor as Governor
from ekc.governor.loop import govern as govern
from ekc.governor.period import Period as Period
from ekc.governor.period import detect_period as detect_period
from ekc.governor.request import Policy as Policy
