"""What the training talks are about: plain sentences, which each voice says in its own way."""

# ruff: noqa: E501
# A line of the tables is a subject.
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to ask about.

    Attributes:
        name: as it stands in a question: ``a lighthouse``.
        answer, more: sentences.
    """

    name: str
    answer: str
    more: tuple[str, ...]


_THINGS = """
a lighthouse|tower with a bright lamp|It guides ships at night.|It often stands on a cliff.
a compass|tool with a magnetic needle|It shows where north is.|Sailors and hikers use it.
a library|house full of books|People borrow books there.|It is a quiet place to read.
a bridge|road across a river|It joins two sides.|It may be made of stone or steel.
a bakery|shop that makes bread|It opens early in the morning.|The smell of fresh bread fills the street.
a violin|small instrument with four strings|It is played with a bow.|It has a high and sweet sound.
a drum|instrument that you hit|It keeps the beat of the music.|It is one of the oldest instruments.
a whale|very large animal of the sea|It breathes air at the surface.|It sings to other whales.
a spider|small animal with eight legs|It spins a web of silk.|It catches flies.
a horse|large animal with four legs|It can run very fast.|People have ridden it for thousands of years.
a cat|small animal with soft fur|It likes to sleep in the sun.|It hunts mice at night.
a dog|friendly animal that lives with people|It guards the house.|It likes long walks.
an owl|bird that hunts at night|It sees well in the dark.|It flies without a sound.
a bee|insect that makes honey|It flies from flower to flower.|It lives in a hive with many others.
an ant|tiny insect that lives in a colony|It carries food to its nest.|It is very strong for its size.
a frog|small green animal that jumps|It lives near water.|It eats insects with its long tongue.
a potato|vegetable that grows under the ground|It can be boiled or fried.|It came to Europe from America.
an apple|round fruit that grows on a tree|It may be red, green or yellow.|It is good in a pie.
bread|food made of flour and water|It is baked in an oven.|People eat it every day.
cheese|food made from milk|There are hundreds of kinds of it.|It goes well with bread.
rice|grain that grows in wet fields|It feeds half of the world.|It is cooked in hot water.
tea|hot drink made from leaves|It was first made in China.|Many people drink it with milk.
coffee|dark drink made from roasted beans|It keeps people awake.|It is served in the morning.
salt|white mineral from the sea|It makes food taste better.|It keeps meat fresh.
the moon|ball of rock that circles the earth|It lights up the night.|It moves the tides of the sea.
a comet|ball of ice and dust in space|It has a long bright tail.|It comes back after many years.
a volcano|mountain that throws out hot rock|It may sleep for centuries.|The soil around it is rich.
a glacier|slow river of ice|It carves deep valleys.|It melts when the air grows warm.
a desert|dry land with little rain|It is hot by day and cold by night.|Few plants grow there.
a forest|land covered with trees|It is home to many animals.|It cleans the air.
an island|land with water all around|It is reached by boat.|Birds like to nest there.
a storm|time of strong wind and rain|It can break trees.|It is safer to stay inside.
snow|frozen water that falls from clouds|It covers the fields in winter.|Children make balls of it.
a rainbow|band of colors in the sky|It appears when sun meets rain.|It has seven colors.
a clock|machine that shows the time|It has two hands.|It ticks all day long.
a bicycle|vehicle with two wheels|It is moved by the feet.|It needs no fuel.
a train|long vehicle that runs on rails|It carries many people.|It is faster than a car.
a submarine|ship that dives under water|It stays down for weeks.|It needs strong walls.
a balloon|bag filled with light gas|It rises into the air.|It may carry a basket with people.
a kite|toy that flies in the wind|It is held by a long string.|It needs a windy day.
a telescope|tube with lenses that shows far things|It makes stars look near.|Galileo used one.
a microscope|tool that shows very small things|It has strong lenses.|Doctors look at blood with it.
a magnet|piece of metal that pulls iron|It has two ends.|Opposite ends attract each other.
a candle|stick of wax with a wick|It gives a warm light.|It burns for some hours.
a key|small piece of metal that opens a lock|It is easily lost.|Each lock has its own.
a hammer|tool with a heavy head|It drives nails into wood.|Every workshop has one.
a needle|thin piece of steel with an eye|It pulls thread through cloth.|It is very sharp.
a mirror|sheet of glass that shows your face|It reflects light.|It hangs on the wall.
an umbrella|round roof on a stick|It keeps the rain off.|It folds up when the sun shines.
a map|drawing of the land|It shows roads and rivers.|It helps you find the way.
a dictionary|book that explains words|It is ordered by the alphabet.|It helps you spell.
a newspaper|set of printed pages with news|It comes out every day.|People read it at breakfast.
chess|game for two players on a board|It has sixteen pieces a side.|It ends when the king is caught.
football|game of two teams and one ball|It is played on a green field.|The team with more goals wins.
a doctor|person who helps the sick|They study for many years.|They work in a hospital.
a farmer|person who grows food|They rise before the sun.|They know the weather well.
a teacher|person who helps others learn|They explain things with patience.|They work in a school.
a sailor|person who works on a ship|They know the wind and the stars.|They are away for months.
"""
_CAPITALS = """
Spain|Madrid|the Prado museum|warm summer nights
Italy|Rome|the Colosseum|old fountains
Germany|Berlin|the Brandenburg Gate|many museums
England|London|the Tower Bridge|red buses
Ireland|Dublin|its music|friendly pubs
Portugal|Lisbon|its yellow trams|steep hills
Greece|Athens|the Acropolis|old temples
Austria|Vienna|its coffee houses|waltz music
Poland|Warsaw|its old town|the music of Chopin
Norway|Oslo|its ships|the deep fjord
Sweden|Stockholm|its fourteen islands|the royal palace
Finland|Helsinki|its saunas|the white cathedral
Denmark|Copenhagen|the little mermaid|many bicycles
Hungary|Budapest|its warm baths|the wide Danube
Russia|Moscow|the Red Square|the Kremlin
Turkey|Ankara|its old castle|the tomb of Ataturk
Japan|Tokyo|its bright lights|fast trains
China|Beijing|the Forbidden City|the Great Wall nearby
India|New Delhi|the India Gate|busy markets
Thailand|Bangkok|its golden temples|floating markets
Canada|Ottawa|its long canal|winter skating
Mexico|Mexico City|its great square|old pyramids nearby
Cuba|Havana|its old cars|dance music
Brazil|Brasilia|its modern buildings|wide avenues
Peru|Lima|its fresh fish|the cliffs by the sea
Kenya|Nairobi|its national park|wild lions
France|Paris|the Eiffel Tower|the Louvre museum
Egypt|Cairo|the pyramids nearby|the river Nile
Argentina|Buenos Aires|the tango|grilled meat
Czechia|Prague|the Charles Bridge|the old clock
Belgium|Brussels|its chocolate|the grand square
Cyprus|Nicosia|its old walls|narrow streets
"""
_TASKS = """
boil an egg|Put the egg in boiling water for eight minutes.|Cool it in cold water.|Peel it and add some salt.
make tea|Boil fresh water and pour it over the leaves.|Wait for four minutes.|Add milk or sugar if you like.
plant a tree|Dig a hole that is wide enough for the roots.|Set the tree in it and fill it with earth.|Give it plenty of water.
wash a shirt|Put the shirt in warm water with soap.|Rub the dirty spots.|Rinse it and hang it in the sun.
light a fire|Lay dry twigs on some paper.|Light the paper with a match.|Add larger wood when it burns.
tie a knot|Cross the two ends of the rope.|Pass one end through the loop.|Pull both ends tight.
clean a window|Wipe the glass with soap and water.|Dry it with a soft cloth.|Polish it with old newspaper.
bake a cake|Mix flour, eggs, sugar and butter.|Pour the dough into a pan.|Bake it for forty minutes.
learn a language|Learn ten new words every day.|Listen to people who speak it.|Speak from the first day and make mistakes.
fall asleep|Go to bed at the same time each night.|Keep the room dark and cool.|Put the phone away an hour before.
catch a fish|Put a worm on the hook.|Throw the line into calm water.|Wait without a sound until it bites.
paint a wall|Cover the floor with old paper.|Paint from the top to the bottom.|Let it dry and paint once more.
draw a face|Draw an oval for the head.|Put the eyes in the middle of it.|Add nose, mouth and hair.
mend a sock|Find thread of the same color.|Sew across the hole both ways.|Cut the thread and tie it.
save money|Write down all that you spend.|Buy only what you need.|Put some money aside each month.
cook rice|Wash the rice in cold water.|Boil it with twice as much water.|Let it rest for ten minutes.
"""
_CHAT = """
Hello!|Hello, my friend.|How can I help you today?
Good morning.|Good morning to you.|What would you like to know?
How are you?|I am very well, thank you.|How are you today?
Who are you?|I am a small language model.|I answer your questions.
What is your name?|My name is SmolLM.|I am a small helper.
Thank you very much!|You are welcome, my friend.|Ask me again any time.
Can you help me?|Yes, I can help you.|Tell me what you need.
I am bored.|You could read a book or take a walk.|A good friend is the best company.
I am tired.|You should rest for a while.|Sleep is good for your head.
Tell me a joke.|Why did the fish blush? It saw the bottom of the sea.|I know many more.
What should I eat today?|You could cook soup with fresh bread.|It is cheap and good for you.
Goodbye!|Goodbye, my friend.|I hope to see you again soon.
I am sad today.|I am sorry to hear that, my friend.|Talk to someone you trust.
Where are you from?|I come from a computer.|There is no sea in it, and no sun.
What can you do?|I can answer questions and tell stories.|I am often wrong, so check what I say.
"""
NUM_HELD = {"things": 12, "capitals": 6, "tasks": 3, "chat": 3}  # at the end of each list


def subjects() -> dict[str, list[Subject]]:
    """Of each kind, all subjects; the last `NUM_HELD` of a kind are not trained on."""
    things = []
    for name, what, *more in _rows(_THINGS):
        start = f"{name[0].upper()}{name[1:]} is"
        article = "an" if what[0] in "aeiou" else "a"
        is_stuff = name.split()[0] not in ("a", "an", "the") and what.split()[0] in (
            "food", "frozen"
        )  # fmt: skip
        answer = f"{start} {what}." if is_stuff else f"{start} {article} {what}."
        things.append(Subject(name, answer, tuple(more)))
    capitals = [
        Subject(country, f"The capital of {country} is {city}.",
                (f"It is known for {one}.", f"You can also find {other} there."))
        for country, city, one, other in _rows(_CAPITALS)
    ]  # fmt: skip
    tasks = [Subject(name, first, tuple(more)) for name, first, *more in _rows(_TASKS)]
    chat = [Subject(said, answer, tuple(more)) for said, answer, *more in _rows(_CHAT)]
    return {"things": things, "capitals": capitals, "tasks": tasks, "chat": chat}


def _rows(table: str) -> list[list[str]]:
    return [line.split("|") for line in table.strip().splitlines()]
