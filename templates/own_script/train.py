import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cloudtrain.trainer import Session  # 1

torch.manual_seed(0)
x = torch.linspace(-3, 3, 4096).unsqueeze(1)
loader = DataLoader(TensorDataset(x, x.sin()), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)

session = Session(model=model, optimizer=opt)
session.resume()  # 2
for inputs, targets in session.batches(loader, epochs=20):  # 3: exactly where it stopped, within an epoch too
    loss = nn.functional.mse_loss(model(inputs), targets)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if session.step(loss=loss):  # 4: saves when due; true when it is time to leave
        break
session.finish()  # 5: after a stop it ends the script here; another machine goes on
torch.save(model.state_dict(), os.path.join(os.environ.get("CLOUDTRAIN_OUTPUT_DIR", "."), "sine.pt"))  # comes home
