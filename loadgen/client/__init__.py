"""The load client: sends a schedule on time, whatever the server does, and records what came back.

`Client(schedule, targets, options, watcher).run(prose)` sends a whole schedule; `ask` sends one request.
"""

from loadgen.client.ask import Question as Question
from loadgen.client.ask import Reply as Reply
from loadgen.client.ask import ask as ask
from loadgen.client.ask import fetch as fetch
from loadgen.client.client import Client as Client
from loadgen.client.values import APIS as APIS
from loadgen.client.values import OTHERS as OTHERS
from loadgen.client.values import Api as Api
from loadgen.client.values import ClientError as ClientError
from loadgen.client.values import ClientOptions as ClientOptions
from loadgen.client.values import Health as Health
from loadgen.client.values import HealthPoint as HealthPoint
from loadgen.client.values import LengthControl as LengthControl
from loadgen.client.values import Target as Target
from loadgen.client.values import Watcher as Watcher
