"""Generative models that draw, with their noise as data: all devices have what one device has."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras_programs.own_steps import FLAT
from keras_programs.plain_steps import IMAGES
from keras_programs.refused import GAN, VAE, Diffusion

RNG = np.random.default_rng(19)


class Given:
    """Takes noise from the batch, in the order in which it is drawn."""

    def train_step(self, data):
        x, *noise = data
        # Past Keras's own way of setting attributes.
        vars(getattr(self, "sampling", self))["drawn"] = lambda shape: noise.pop(0)
        logs = super().train_step(x)
        assert not noise
        return logs


class GivenVAE(Given, VAE):
    pass


class GivenGAN(Given, GAN):
    def __init__(self):
        super().__init__(lambda: layers.BatchNormalization(synchronized=True), 0.0)


class GivenDiffusion(Given, Diffusion):
    pass


def batches(*arrays):
    return (tf.data.Dataset.from_tensor_slices(arrays).batch(10),)


def vae():
    made = GivenVAE()
    made.compile(keras.optimizers.Adam(0.01))
    return made, batches(FLAT, RNG.normal(size=(24, 3)))


def dcgan():
    made = GivenGAN()
    made.compile(keras.optimizers.Adam(0.001), keras.optimizers.Adam(0.001))
    return made, batches(IMAGES, RNG.normal(size=(24, 4)), RNG.normal(size=(24, 4)))


def ddpm():
    made = GivenDiffusion()
    made.compile(keras.optimizers.AdamW(0.001))
    return made, batches(FLAT, RNG.normal(size=(24, 6)), RNG.normal(size=(24, 1)))


EQUAL = {"VAE with given noise": vae, "DCGAN with given noise": dcgan, "DDPM with given noise": ddpm}
