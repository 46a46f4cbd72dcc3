"""A small hand-written grammar of English that trains the embedded model.

`stories(seed, count)` yields short texts of three to six sentences. Each has named characters, one place and one
object; pronouns follow the character, verbs agree in number and person, `a`/`an` follows the sound. The vocabulary is
some hundreds of words, so that a model of half a million parameters can write it without mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

GIRLS = ("Anna", "Clara", "Emma", "Ida", "Lucy", "Maria", "Nora", "Ruth", "Sara", "Vera")
BOYS = ("Ben", "David", "Felix", "Hugo", "Jonas", "Leo", "Max", "Oscar", "Paul", "Tom")
ROLES = (
    "miller", "baker", "farmer", "teacher", "doctor", "fisherman", "gardener", "carpenter", "painter", "sailor",
    "shepherd", "weaver",
)
# Each place carries the preposition that it takes.
PLACES = (
    ("in", "the village"), ("in", "the garden"), ("in", "the kitchen"), ("in", "the forest"), ("in", "the valley"),
    ("in", "the old house"), ("in", "the library"), ("in", "the barn"), ("at", "the market"), ("at", "the school"),
    ("at", "the harbor"), ("at", "the mill"), ("by", "the river"), ("by", "the lake"), ("by", "the sea"),
    ("on", "the hill"), ("on", "the bridge"), ("on", "the farm"), ("under", "the old tree"), ("near", "the church"),
)
ANIMALS = (
    ("cat", "cats"), ("dog", "dogs"), ("horse", "horses"), ("bird", "birds"), ("duck", "ducks"), ("goat", "goats"),
    ("rabbit", "rabbits"), ("fox", "foxes"), ("owl", "owls"), ("lamb", "lambs"),
)
THINGS = (
    ("apple", "apples"), ("basket", "baskets"), ("book", "books"), ("boat", "boats"), ("lamp", "lamps"),
    ("letter", "letters"), ("key", "keys"), ("coat", "coats"), ("clock", "clocks"), ("flower", "flowers"),
    ("stone", "stones"), ("shell", "shells"), ("song", "songs"), ("cake", "cakes"), ("umbrella", "umbrellas"),
    ("picture", "pictures"), ("wheel", "wheels"), ("egg", "eggs"), ("bell", "bells"), ("map", "maps"),
)
SIZES = ("small", "little", "big", "tall", "long", "short")
QUALITIES = ("old", "new", "pretty", "strange", "beautiful", "simple", "heavy", "fine", "useful", "clean")
COLOURS = ("red", "blue", "green", "yellow", "white", "brown", "black", "gray")
TEMPERS = ("kind", "clever", "gentle", "brave", "patient", "friendly", "honest", "young")
MOODS = ("happy", "tired", "hungry", "proud", "calm", "curious", "sad", "glad", "surprised", "thirsty")
WEATHER = (
    "the sun was shining", "the wind was cold", "it was raining", "the snow was deep", "the sky was clear",
    "the air was warm", "the moon was bright", "the leaves were falling",
)
TIMES = (
    "One morning", "One evening", "One day", "In the spring", "In the summer", "In the autumn", "In the winter",
    "On Sunday", "On Monday", "After dinner", "Before breakfast", "Late at night", "Every day", "That day",
)
ADVERBS = ("quietly", "slowly", "quickly", "carefully", "happily", "gently", "at once", "again")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "many", "some", "a few")
# Base, third person singular, past.
TAKE = (
    ("find", "finds", "found"), ("see", "sees", "saw"), ("buy", "buys", "bought"), ("carry", "carries", "carried"),
    ("want", "wants", "wanted"), ("bring", "brings", "brought"), ("paint", "paints", "painted"),
    ("lose", "loses", "lost"), ("keep", "keeps", "kept"), ("like", "likes", "liked"),
)
MEET = (
    ("meet", "meets", "met"), ("see", "sees", "saw"), ("feed", "feeds", "fed"), ("follow", "follows", "followed"),
    ("love", "loves", "loved"), ("watch", "watches", "watched"), ("call", "calls", "called"),
)
MOVE = (
    ("walk", "walks", "walked"), ("run", "runs", "ran"), ("sit", "sits", "sat"), ("sing", "sings", "sang"),
    ("sleep", "sleeps", "slept"), ("play", "plays", "played"), ("work", "works", "worked"), ("wait", "waits", "waited"),
    ("rest", "rests", "rested"), ("dance", "dances", "danced"),
)
ANIMAL_MOVE = (
    ("run", "runs", "ran"), ("sleep", "sleeps", "slept"), ("eat", "eats", "ate"), ("play", "plays", "played"),
    ("jump", "jumps", "jumped"), ("hide", "hides", "hid"),
)
SAYINGS = (
    "Good morning", "Thank you", "Come with me", "I am glad to see you", "This is a good day", "Do not be afraid",
    "We must go home", "Look at the sky", "I will help you", "Please wait for me", "It is late", "I know the way",
)
ENDINGS = (
    "Then {he} went home.", "In the end {he} was {mood}.", "{He} never forgot that day.",
    "At night {he} slept well.", "{He} smiled and went home.", "After that, {he} and {friend} were good friends.",
    "{He} told {friend} the whole story.", "That night {he} dreamed of {thing}.", "And {he} was {mood} again.",
)


@dataclass(frozen=True)
class Character:
    """A person in a story, with the pronouns that go with the name."""

    name: str
    he: str
    him: str
    his: str

    @property
    def subject(self) -> str:
        """The pronoun as the first word of a sentence."""
        return self.he.capitalize()


def article(phrase: str) -> str:
    """The phrase with `a` or `an` before it: by the sound, hence `an honest` and `a useful`."""
    vowel_sound = phrase.startswith("honest") or (phrase[0] in "aeiou" and not phrase.startswith("useful"))
    return ("an " if vowel_sound else "a ") + phrase


class Story:
    """One text in the making: who is in it, where, and with what."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        first_is_girl, second_is_girl = rng.random() < 0.5, rng.random() < 0.5
        self.hero = self._character(first_is_girl, exclude="")
        self.friend = self._character(second_is_girl, exclude=self.hero.name)
        self.preposition, self.place = rng.choice(PLACES)
        self.animal = rng.choice(ANIMALS)
        self.thing = rng.choice(THINGS)
        self.animal_seen = False
        self.thing_seen = False

    def _character(self, girl: bool, exclude: str) -> Character:
        name = self.rng.choice([n for n in (GIRLS if girl else BOYS) if n != exclude])
        return Character(name, "she", "her", "her") if girl else Character(name, "he", "him", "his")

    def _adjective(self) -> str:
        pick = self.rng.choice
        roll = self.rng.random()
        if roll < 0.35:
            return pick(COLOURS) + " "
        if roll < 0.6:
            return pick(SIZES) + " "
        if roll < 0.8:
            return pick(QUALITIES) + " "
        if roll < 0.9:
            return pick(SIZES) + " " + pick(COLOURS) + " "
        return ""

    def object_phrase(self) -> str:
        """The story's object: indefinite when it is new, definite afterwards; sometimes another thing in plural."""
        if self.thing_seen:
            return "the " + self.thing[0]
        if self.rng.random() < 0.25:
            plural = self.rng.choice([t for t in THINGS if t != self.thing])[1]
            return f"{self.rng.choice(NUMBERS)} {self._adjective()}{plural}"
        self.thing_seen = True
        return article(self._adjective() + self.thing[0])

    def animal_phrase(self) -> str:
        """The story's animal: `a ...` the first time, `the ...` afterwards."""
        if self.animal_seen:
            return "the " + self.animal[0]
        self.animal_seen = True
        return article(self._adjective() + self.animal[0])

    def opening(self) -> str:
        pick, hero = self.rng.choice, self.hero
        where = f"{self.preposition} {self.place}"
        return pick((
            lambda: f"{hero.name} was {article(f'{pick(TEMPERS)} {pick(ROLES)}')} who lived {where}.",
            lambda: f"Once upon a time there was {article(f'{pick(TEMPERS)} {pick(ROLES)}')} called {hero.name}.",
            lambda: f"{pick(TIMES)}, {hero.name} was {where}.",
            lambda: f"{pick(TIMES)}, {hero.name} and {self.friend.name} were {where}.",
            lambda: f"{hero.name} had {article(f'{pick(TEMPERS)} friend')} called {self.friend.name}.",
            lambda: f"The {pick(TEMPERS)} {pick(ROLES)} {hero.name} lived {where} with {self.animal_phrase()}.",
        ))()

    def middle(self, count: int) -> list[str]:
        """Sentences about the hero in the past tense, with the pronoun as subject; no two of the same kind."""
        pick, hero, friend = self.rng.choice, self.hero, self.friend
        where = f"{self.preposition} {self.place}"
        kinds = (
            lambda: f"{hero.subject} {pick(TAKE)[2]} {self.object_phrase()} {where}.",
            lambda: f"{hero.subject} {pick(MEET)[2]} {self.animal_phrase()}.",
            lambda: f"{hero.subject} {pick(MOVE)[2]} {pick(ADVERBS)} {where}.",
            lambda: f"{hero.subject} gave {self.object_phrase()} to {friend.name}.",
            lambda: f"{hero.subject} was {pick(MOODS)} because {pick(WEATHER)}.",
            lambda: f"When {pick(WEATHER)}, {hero.he} {pick(MOVE)[2]} {where}.",
            lambda: f"\"{pick(SAYINGS)},\" said {friend.name}.",
            lambda: f"\"{pick(SAYINGS)},\" said {hero.name} to {hero.his} friend.",
            lambda: f"{friend.name} {pick(MOVE)[2]} with {hero.him} and {pick(TAKE)[2]} {self.object_phrase()}.",
            lambda: f"{hero.subject} asked {friend.name} for {self.object_phrase()}, but {friend.name} was {pick(MOODS)}.",
            self.quality_sentence,
            self.animal_sentence,
        )
        return [kind() for kind in self.rng.sample(kinds, count)]

    def quality_sentence(self) -> str:
        pick = self.rng.choice
        if self.thing_seen:
            return f"The {self.thing[0]} was {pick(QUALITIES)}."
        self.thing_seen = True
        return f"{self.hero.subject} {pick(TAKE)[2]} {article(self.thing[0])} that was {pick(QUALITIES)}."

    def animal_sentence(self) -> str:
        pick = self.rng.choice
        if not self.animal_seen:
            plural = pick(ANIMALS)[1]
            return f"There were {pick(NUMBERS)} {pick(COLOURS)} {plural} {self.preposition} {self.place}."
        return f"The {self.animal[0]} {pick(ANIMAL_MOVE)[2]} {pick(ADVERBS[:8])}."

    def fact(self) -> str:
        """A general sentence in the present tense, where the verb agrees with its subject."""
        pick = self.rng.choice
        one, many = pick(ANIMALS)
        verb = pick(ANIMAL_MOVE)
        preposition, place = pick(PLACES)
        role, (_, things) = pick(ROLES), pick(THINGS)
        take = pick(TAKE)
        return pick((
            lambda: f"The {pick(COLOURS)} {one} {verb[1]} {preposition} {place}.",
            lambda: f"The {pick(COLOURS)} {many} {verb[0]} {preposition} {place}.",
            lambda: f"Every {role} {take[1]} {things}.",
            lambda: f"A good {role} {take[1]} {things}."
            if role.endswith("man") else f"Most {role}s {take[0]} {things}.",
            lambda: f"A {pick(TEMPERS[:3])} {role} never {take[1]} {things}.",
        ))()

    def ending(self) -> str:
        thing = f"the {self.thing[0]}" if self.thing_seen else self.thing[1]
        return self.rng.choice(ENDINGS).format(
            he=self.hero.he, He=self.hero.subject, friend=self.friend.name, mood=self.rng.choice(MOODS), thing=thing
        )

    def text(self) -> str:
        sentences = [self.opening(), *self.middle(self.rng.randint(1, 4))]
        if self.rng.random() < 0.2:
            sentences = [self.fact(), *sentences]
        return " ".join([*sentences, self.ending()])


def stories(seed: int, count: int) -> Iterator[str]:
    """Yield `count` stories; the same seed always gives the same texts."""
    rng = random.Random(seed)
    for _ in range(count):
        yield Story(rng).text()
