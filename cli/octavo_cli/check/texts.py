"""Prompts, prose and questions of the gate: written for it, in plain English, under the repository's licence."""

from __future__ import annotations

PROMPTS = (
    "The harbour was quiet when the last boat came in, and",
    "def area_of_circle(radius):\n    return",
    "Water boils at a lower temperature on a mountain because",
    "Monday, Tuesday, Wednesday, Thursday,",
    "Q: Which planet is closest to the sun?\nA:",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "The recipe asks for two cups of flour, one cup of sugar and",
    "In the year 1492, Christopher Columbus",
)

PROSE = (
    "The old mill stood where the river bent toward the town, and for as long as anyone could remember its wheel had "
    "turned from the first thaw to the first frost. Children were told that it ground the winter into snow. In truth it "
    "ground wheat, and not much of that, for the farmers had begun to send their grain by rail to the city. The miller "
    "did not complain. He oiled the axle every morning, swept the floor, and set a chair by the window, from which he "
    "could see both the bridge and the road. When a cart came over the bridge he put on his hat. When nobody came, he "
    "read the newspaper of the week before, which the station master kept for him. One evening in October a stranger "
    "asked him for a room. There was no inn on that side of the river, and the rain had washed out the path. The miller "
    "gave her soup and a blanket, and she told him that she was measuring the water for a company that wanted to build "
    "a dam. She had a box of brass instruments and a notebook full of figures. He listened for a long time without a "
    "word, and then he asked her how much water there was. She turned the pages and read him the number. It was more "
    "than he had thought. He nodded, as a man nods who has been told the age of a friend, and put another log on the fire."
)
"""Text of the perplexity."""

QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("The capital of France is", (" Paris", " London", " Berlin", " Madrid")),
    ("The opposite of hot is", (" cold", " tall", " loud", " green")),
    ("A baby dog is called a", (" puppy", " kitten", " calf", " foal")),
    ("The sun rises in the", (" east", " west", " north", " south")),
    ("Two plus two equals", (" four", " nine", " seven", " ten")),
    ("Fish live in the", (" water", " desert", " sky", " oven")),
    ("The color of fresh grass is", (" green", " purple", " orange", " white")),
    ("A week has seven", (" days", " months", " minutes", " wheels")),
    ("Bees make", (" honey", " milk", " paper", " bread")),
    ("You cut paper with", (" scissors", " spoons", " pillows", " soup")),
    ("The largest ocean on Earth is the", (" Pacific", " Baltic", " Thames", " Sahara")),
    ("Ice is frozen", (" water", " sand", " wood", " iron")),
    ("A person who teaches in a school is a", (" teacher", " pilot", " farmer", " singer")),
    ("Birds fly with their", (" wings", " ears", " teeth", " tails")),
    ("At night we can see the", (" stars", " homework", " breakfast", " carpets")),
    ("The first month of the year is", (" January", " August", " October", " May")),
    ("A triangle has three", (" sides", " wheels", " lions", " colors")),
    ("Doctors work in a", (" hospital", " volcano", " river", " pencil")),
    ("The heart pumps", (" blood", " air", " sand", " stone")),
    ("Spiders have eight", (" legs", " wings", " noses", " shoes")),
    ("We read with our", (" eyes", " knees", " elbows", " heels")),
    ("Bread is made from", (" flour", " glass", " plastic", " steel")),
    ("The Earth moves around the", (" sun", " moon", " house", " city")),
    ("An umbrella keeps you dry in the", (" rain", " bed", " oven", " library")),
)
"""A beginning and its endings; the first ending is right."""
