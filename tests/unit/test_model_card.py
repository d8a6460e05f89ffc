"""The model card names the number types in which the samples were drawn."""

from distillery.config.jobs import ExportJob
from distillery.config.run import Targets
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.student.export import model_card

ABOUT = {
    "call": {"arguments": {"num_inference_steps": 4}, "absent": {}, "picture": "images[0]"},
    "lora": {"scheduler": "EulerDiscreteScheduler", "modules": {}, "settings": {}},
    "recipe": {
        "schedule": {"timesteps": [999, 500]},
        "training": {},
        "seed": 0,
        "targets": "t" * 64,
    },
    "recipe_hash": "r" * 64,
    "samples_seen": 64,
}


def test_both_calls_load_the_vae_in_its_own_type() -> None:
    job = ExportJob(
        teacher=Teacher(path="model", vae_dtype="float16", height=32, width=32),
        targets=Targets(steps=8, guidance_scale=4.0),
        student=Student(steps=4),
    )
    dtypes = 'torch_dtype={"default": torch.bfloat16, "vae": torch.float16},'
    assert model_card(job, ABOUT).count(dtypes) == 2
