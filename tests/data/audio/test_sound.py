"""Recordings: every form of WAV, other rates, broken files, folders and tables of them."""

from __future__ import annotations

import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from anyformer import UserError
from anyformer.data.audio.clips import decode_clips
from anyformer.data.audio.decoding import look_at, read_sound, resample
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.examples import Draw
from anyformer.data.files.audio_folders import read_sounds, unlabelled_clips
from anyformer.data.prepare_rows import examples_for
from anyformer.data.reopen import open_prepared
from anyformer.data.settings import AudioSettings, Data
from anyformer.tasks.prepare import prepare, read_new_rows

RATE = 1000


def tone(hertz: float, samples: int = 400, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(samples) / rate)


def save(path: Path, sound: np.ndarray, *, rate: int = RATE, bits: int = 16, kind: int = 1) -> Path:
    """A WAV file by hand; `sound` is (N,) or (N, channels)."""
    data = sound.reshape(len(sound), -1)
    if kind == 3:
        raw = data.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        raw = (np.round(data * 127) + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(data * (2 ** (bits - 1) - 1)).astype("<i4")
        raw = (
            whole.tobytes()
            if bits == 32
            else whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
        )
    block = data.shape[1] * bits // 8
    form = struct.pack("<HHIIHH", kind, data.shape[1], rate, rate * block, block, bits)
    body = (
        b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"LIST\x03\0\0\0abc\0"
        + b"data"
        + struct.pack("<I", len(raw))
        + raw
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


# ---------------------------------------------------------------- reading


@pytest.mark.quick
@pytest.mark.parametrize(
    ("bits", "kind", "near"), [(8, 1, 1e-2), (16, 1, 1e-4), (24, 1, 1e-6), (32, 1, 1e-6), (32, 3, 1e-6), (64, 3, 1e-6)]
)
def test_every_form_of_wav_gives_the_same_sound(tmp_path: Path, bits: int, kind: int, near: float) -> None:
    sound = tone(50)
    found, rate = read_sound(save(tmp_path / "a.wav", sound, bits=bits, kind=kind))
    assert rate == RATE and found.dtype == np.float32 and np.abs(found - sound).max() < near


def test_wav_as_the_standard_library_and_soundfile_read_it(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = save(tmp_path / "a.wav", np.stack([tone(50), tone(90)], 1))
    with wave.open(str(path)) as file:
        raw = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2) / 2**15
    ours, _ = read_sound(path)
    assert np.abs(ours - raw.mean(1)).max() < 1e-6 and np.abs(ours - soundfile.read(path)[0].mean(1)).max() < 1e-6
    packed = tmp_path / "a.flac"
    soundfile.write(packed, tone(50), RATE)
    assert look_at(packed).samples == 400 and np.abs(read_sound(packed)[0] - tone(50)).max() < 1e-4


def test_without_soundfile_only_wav_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert len(read_sound(save(tmp_path / "a.wav", tone(50)))[0]) == 400
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(UserError, match=r"a\.flac: only WAV can be read without the package soundfile"):
        look_at(tmp_path / "a.flac")


def broken(folder: Path) -> dict[str, tuple[Path, str]]:
    whole = save(folder / "whole.wav", tone(50)).read_bytes()
    made = {
        "empty": (b"", "the file is empty"),
        "no-riff": (b"junk" * 20, "is not a WAV recording"),
        "cut": (whole[:-100], "is cut off: 700 of 800 bytes"),
        "cut-head": (whole[:20], "its format is cut off"),
        "no-samples": (whole[:48] + b"LIST\0\0\0\0", "holds no samples"),
        "compressed": (whole.replace(struct.pack("<HH", 1, 1), struct.pack("<HH", 85, 1), 1), "is stored in form 85"),
        "no-channels": (whole.replace(struct.pack("<HH", 1, 1), struct.pack("<HH", 1, 0), 1), "says 0 channels"),
    }
    found = {}
    for name, (raw, said) in made.items():
        (folder / f"{name}.wav").write_bytes(raw)
        found[name] = (folder / f"{name}.wav", said)
    nothing = save(folder / "nan.wav", np.full(10, np.nan), bits=32, kind=3)
    return found | {"nan": (nothing, "not numbers"), "absent": (folder / "absent.wav", "cannot be opened")}


@pytest.mark.parametrize(
    "name",
    ["empty", "no-riff", "cut", "cut-head", "no-samples", "compressed", "no-channels", "nan", "absent"],
)
def test_a_broken_recording_is_one_error_with_its_name(tmp_path: Path, name: str) -> None:
    path, said = broken(tmp_path)[name]
    with pytest.raises(UserError) as refused:
        read_sound(path)
    assert said in str(refused.value) and path.name in str(refused.value) and len(str(refused.value)) <= 300


def test_a_size_that_was_never_filled_in_means_the_rest_of_the_file(tmp_path: Path) -> None:
    raw = save(tmp_path / "a.wav", tone(50)).read_bytes()
    (tmp_path / "b.wav").write_bytes(raw.replace(b"data" + struct.pack("<I", 800), b"data\xff\xff\xff\xff"))
    assert look_at(tmp_path / "b.wav").samples == 400


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("old", "new"), [(1000, 500), (1000, 800), (441, 160), (500, 1000), (1000, 1000), (997, 10007)]
)
def test_a_tone_at_another_rate_is_the_tone(old: int, new: int) -> None:
    found = resample(tone(40, 2000, old).astype(np.float32), old, new)
    wanted = tone(40, len(found), new)
    assert abs(len(found) - 2000 * new / old) <= 1
    middle = slice(len(found) // 4, -len(found) // 4)
    assert np.abs(found - wanted)[middle].max() < (5e-3 if new < 5000 else 2e-2)  # the last ratio by straight lines


def test_what_the_lower_rate_cannot_hold_is_filtered_out() -> None:
    found = resample(tone(450, 2000, 1000).astype(np.float32), 1000, 500)
    assert np.abs(found[200:-200]).max() < 1e-2
    assert np.abs(tone(450, 2000, 1000)[::2]).max() > 0.4  # control: taking every other sample folds it down


# ---------------------------------------------------------------- rows


def classes(folder: Path, clips: int = 6) -> Path:
    for kind, hertz in (("high", 300), ("low", 60)):
        for number in range(clips):
            save(folder / kind / f"{number}.wav", tone(hertz + number, 150 + 10 * number))
    return folder


def test_folders_are_classes_and_strangers_are_counted(tmp_path: Path) -> None:
    root = classes(tmp_path / "clips")
    (root / "low" / "notes.txt").write_text("x")
    save(root / "loose.wav", tone(50))
    frame = read_sounds([root])
    assert (
        len(frame) == 12
        and frame.names == ["audio", "label"]
        and set(frame.column("label").to_pylist()) == {"low", "high"}
    )
    assert dict(frame.skipped) == {"no recording by name (.txt)": 1, "outside the class folders": 1}
    assert unlabelled_clips([root]) is None and len(unlabelled_clips([root / "low"]) or ()) == 6
    with pytest.raises(UserError, match="only one class"):
        read_sounds([one_class(tmp_path)])
    with pytest.raises(UserError, match="no recordings"):
        (tmp_path / "empty" / "a").mkdir(parents=True)
        read_sounds([tmp_path / "empty"])


def one_class(folder: Path) -> Path:
    save(folder / "single" / "low" / "a.wav", tone(50))
    return folder / "single"


def test_batches_hold_clips_their_lengths_and_vary_by_the_draw_alone(tmp_path: Path) -> None:
    made = prepare([classes(tmp_path / "clips")], cache=tmp_path / "cache", seed=1)
    assert made.task == "classify" and isinstance(made.train, RowExamples)
    sizes = made.facts["sizes"]
    assert sizes["parts"] == ["audio"] and sizes["sample_rate"] == RATE and sizes["samples"] == 200
    batch = made.train.batch([0, 1])
    sound, lengths = batch.inputs
    assert sound.shape == (2, 200) and lengths.tolist() == [made_length(made.train, row) for row in (0, 1)]
    assert (sound[0, int(lengths[0]) :] == 0).all() and not batch.named
    moved = made.train.batch([0, 1], Draw(0, 1)).inputs[0]
    assert (moved - sound).abs().max() > 1e-3  # control
    assert made.train.batch([1, 0], Draw(0, 1)).inputs[0].flip(0).equal(moved)
    again = open_prepared(tmp_path / "cache")
    assert again is not None and again.train.batch([0, 1], Draw(0, 1)).inputs[0].equal(moved)


def made_length(examples: RowExamples, row: int) -> int:
    return look_at(Path(examples.cells(row)["audio"])).samples


def test_a_table_of_paths_beside_it_and_new_clips_at_another_rate(tmp_path: Path) -> None:
    classes(tmp_path / "clips", 8)
    lines = [f"clips/{kind}/{number}.wav,{kind}" for kind in ("low", "high") for number in range(8)]
    (tmp_path / "clips.csv").write_text("path,kind\n" + "\n".join(lines) + "\n")
    made = prepare([tmp_path / "clips.csv"], settings=Data(target=("kind",)), cache=tmp_path / "cache")
    assert [type(column).__name__ for column in made.preprocess.columns or ()] == ["Audio"]
    new = save(tmp_path / "new.wav", tone(60, 400, 2 * RATE), rate=2 * RATE)
    (tmp_path / "new.csv").write_text(f"path\n{new.name}\n")
    frame, _ = read_new_rows([tmp_path / "new.csv"], made.preprocess, Data(), tmp_path / "read")
    examples, _ = examples_for(frame, made.preprocess, None, tmp_path / "arrays")
    sound, lengths = examples.batch([0]).inputs
    assert lengths.tolist() == [200] and np.abs(sound[0, 50:150].numpy() - tone(60)[50:150]).max() < 1e-2


def test_broken_clips_are_left_out_and_named_or_refused(tmp_path: Path) -> None:
    root = classes(tmp_path / "clips")
    (root / "low" / "9.wav").write_bytes(b"junk")
    made = prepare([root], cache=tmp_path / "cache")
    assert made.facts["skipped"] == {"the recording cannot be read": 1}
    assert "9.wav" in made.facts["skipped_first"]["the recording cannot be read"]
    with pytest.raises(UserError, match=r"clips clip \d+ \(9\.wav\): is not a WAV recording"):
        prepare([root], settings=Data(bad="error"), cache=tmp_path / "other")
    frame = read_sounds([root]).take([12])
    with pytest.raises(UserError, match="no recording can be read; the first is"):
        decode_clips(frame, "audio", AudioSettings(), Arrays.new(tmp_path / "a"), log=lambda line: None, bad="skip")


def test_long_clips_are_cut_and_settings_refused(tmp_path: Path) -> None:
    root = classes(tmp_path / "clips")
    made = prepare([root], settings=Data(audio=AudioSettings(seconds=0.1, sample_rate=500)), cache=tmp_path / "cache")
    assert made.facts["sizes"]["samples"] == 50 and made.train.batch([0]).inputs[1].tolist() == [50]
    assert any("12 resampled" in note and "12 cut at 0.10 s" in note for note in made.notes)
    for settings in ({"sample_rate": 1}, {"seconds": 0.0}, {"shift": 1.0}, {"gain": -1.0}):
        with pytest.raises(UserError):
            AudioSettings(**settings)
