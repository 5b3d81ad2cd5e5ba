"""The digits of scikit-learn, with Keras's own loop."""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import colonnade as cn

cn.setup(virtual=2)  # with cards: cn.setup()

keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
x, x_test, y, y_test = train_test_split(images, labels, test_size=0.2, random_state=1)

model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.Conv2D(32, 3, activation="elu"),
        keras.layers.Conv2D(64, 3, activation="elu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
cn.fit(model, x, y, batch_size=64, epochs=8, validation_data=(x_test, y_test), callbacks=[stop], verbose=2)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")
