"""Recipe → TrainingArguments. The Trainer's traps are avoided here, each with its reason."""

from __future__ import annotations

import torch
from transformers import TrainingArguments

from latemask.ground.precision import mixed_precision
from latemask.ground.processes import world_size
from latemask.recipe import Recipe, TrainRecipe, batch_split
from latemask.run_folder import RunFolder


def check_training(train: TrainRecipe) -> None:
    """Refuse what this machine cannot do, before anything is written."""
    batch_split(train, world_size())
    mixed_precision(train.precision)


def training_arguments(recipe: Recipe, run: RunFolder, steps: int, has_validation: bool) -> TrainingArguments:
    """Return the Trainer's settings for a recipe."""
    train = recipe.train
    on_device, accumulation = batch_split(train, world_size())
    return TrainingArguments(
        output_dir=str(run.checkpoints),
        max_steps=steps,
        per_device_train_batch_size=on_device,
        per_device_eval_batch_size=on_device,
        gradient_accumulation_steps=accumulation,
        learning_rate=train.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=round(train.warmup * steps),
        weight_decay=train.weight_decay,
        adam_beta1=train.beta1,
        adam_beta2=train.beta2,
        adam_epsilon=train.epsilon,
        max_grad_norm=train.clip,
        logging_steps=train.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # it would show the last good loss in place of a NaN
        eval_strategy="steps" if has_validation else "no",
        eval_steps=train.eval_every,
        prediction_loss_only=True,
        save_strategy="steps",
        save_steps=train.save_every,
        seed=recipe.seed,
        dataloader_num_workers=train.workers,
        dataloader_drop_last=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        train_sampling_strategy="sequential",  # our samples are shuffled by their index already
        ignore_data_skip=True,  # a resumed run starts its dataset at the right sample instead of skipping to it
        remove_unused_columns=False,  # "index" is for the collator, not for the model
        report_to=["tensorboard"],
        use_cpu=not torch.accelerator.is_available(),  # else the Trainer takes bf16 for a GPU's only
        ddp_find_unused_parameters=False,  # every weight of every kind of model takes part in every step
        disable_tqdm=True,
        bf16=mixed_precision(train.precision) is torch.bfloat16,
        fp16=mixed_precision(train.precision) is torch.float16,
    )
